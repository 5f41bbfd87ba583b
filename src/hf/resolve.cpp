#include "hf/resolve.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "io/error.h"

namespace hero {

namespace fs = std::filesystem;

std::string checkpoint_name(int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%08lld", static_cast<long long>(step));
  return text;
}

std::optional<int64_t> checkpoint_step(const std::string& name) {
  const size_t prefix = std::string_view("step-").size();
  int64_t step = 0;
  if (name.size() > prefix) std::from_chars(name.data() + prefix, name.data() + name.size(), step);
  return step >= 0 && checkpoint_name(step) == name ? std::optional(step) : std::nullopt;
}

namespace {

bool is_model_dir(const fs::path& dir) {
  return fs::is_regular_file(dir / "config.json") &&
         (fs::exists(dir / "model.safetensors") || fs::is_regular_file(dir / "model.safetensors.index.json"));
}

}  // namespace

std::vector<fs::path> list_checkpoints(const fs::path& run) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", missing)) {
    const auto step = checkpoint_step(entry.path().filename().string());
    if (step && entry.is_directory()) found.emplace_back(*step, entry.path());
  }
  std::ranges::sort(found);
  std::vector<fs::path> folders;
  folders.reserve(found.size());
  for (auto& [step, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

fs::path resolve_model_dir(const fs::path& dir) {
  std::error_code error;
  if (!fs::is_directory(dir, error)) {
    throw UserError(dir.string() + ": " + (fs::exists(dir, error) ? "found a file" : "no such folder") +
                    ", expected a run folder, a checkpoint or a model folder");
  }
  if (is_model_dir(dir)) return dir;
  const std::vector<fs::path> checkpoints = list_checkpoints(dir);
  if (fs::is_directory(dir / "checkpoints") && checkpoints.empty()) {
    throw UserError((dir / "checkpoints").string() + ": found no finished checkpoint, expected step-%08d");
  }
  if (checkpoints.empty()) {
    throw UserError(dir.string() + ": found neither config.json with model.safetensors (or its index) nor " +
                    "checkpoints/, expected a run folder, a checkpoint or a model folder");
  }
  if (!is_model_dir(checkpoints.back())) {
    throw UserError(checkpoints.back().string() +
                    ": found no config.json with model.safetensors (or its index), expected a checkpoint");
  }
  return checkpoints.back();
}

}  // namespace hero
