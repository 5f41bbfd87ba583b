#include "train/branch.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <fstream>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/state_file.h"
#include "config/warnings.h"
#include "hf/resolve.h"
#include "io/durable_file.h"
#include "io/error.h"
#include "io/file_io.h"
#include "io/sha256.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

std::string steps_of(const std::vector<fs::path>& checkpoints) {
  std::string text;
  for (const auto& folder : checkpoints)
    text +=
        (text.empty() ? "" : ", ") + std::to_string(checkpoint_step(folder.filename().string()).value_or(0));
  return text;
}

std::vector<fs::path> checkpoints_of_run(const fs::path& run) {
  auto found = list_checkpoints(run);
  if (found.empty()) {
    throw UserError("--branch: found no finished checkpoint in " + (run / "checkpoints").string() +
                    ", expected a run that has saved one");
  }
  return found;
}

// The checkpoints that `branch` may mean, ascending; more than one only for a run folder without a step.
std::vector<fs::path> candidates(const std::string& branch) {
  if (fs::is_directory(branch)) {
    if (fs::exists(fs::path(branch) / "state.json")) return {fs::canonical(branch)};
    if (fs::is_directory(fs::path(branch) / "checkpoints")) return checkpoints_of_run(branch);
    throw UserError("--branch: found neither state.json nor checkpoints/ in " + branch +
                    ", expected a run or checkpoint folder; --init-from starts from a model folder");
  }
  const size_t at = branch.rfind('@');
  int64_t step = 0;
  const char* const end = branch.data() + branch.size();
  const auto parsed = std::from_chars(branch.data() + std::min(at, branch.size() - 1) + 1, end, step);
  const bool has_step = at != std::string::npos && parsed.ec == std::errc() && parsed.ptr == end;
  const fs::path run = has_step ? branch.substr(0, at) : branch;
  if (!fs::is_directory(run)) {
    throw UserError("--branch: found no folder " + run.string() +
                    ", expected RUN, RUN@STEP or a checkpoint folder");
  }
  const auto existing = checkpoints_of_run(run);
  const auto wanted = std::ranges::find(existing, checkpoint_folder(run, step));
  if (wanted == existing.end()) {
    throw UserError("--branch: found no checkpoint of step " + std::to_string(step) + " in " + run.string() +
                    ", expected one of " + steps_of(existing));
  }
  return {*wanted};
}

void copy_durable(const fs::path& from, const fs::path& to) {
  std::ifstream source(from, std::ios::binary);
  DurableFile copy(to);
  std::vector<char> block(1 << 20);
  do {
    source.read(block.data(), std::ssize(block));
    copy.write(block.data(), static_cast<size_t>(source.gcount()));
  } while (source);
  copy.commit();
}

}  // namespace

BranchPoint find_branch_point(const std::string& branch) {
  auto folders = candidates(branch);
  std::string newest_corruption;
  for (; !folders.empty(); folders.pop_back()) {
    const auto corruption = find_corruption(folders.back());
    if (!corruption) return read_branch_point(folders.back());
    if (folders.size() > 1) warn({*corruption + "; skipped this checkpoint"});
    if (newest_corruption.empty()) newest_corruption = *corruption;
  }
  throw UserError("--branch: " + newest_corruption);
}

Config branch_config(const std::string& branch) {
  std::exception_ptr newest;
  for (auto folders = candidates(branch); !folders.empty(); folders.pop_back()) {
    try {
      return load_config({(folders.back() / "config.toml").string()}, {});
    } catch (const UserError&) {
      if (!newest) newest = std::current_exception();
    }
  }
  std::rethrow_exception(newest);
}

BranchPoint read_branch_point(const fs::path& checkpoint) {
  const std::string state = (checkpoint / "state.json").string();
  return {.checkpoint = fs::absolute(checkpoint).lexically_normal(),
          .step = parse_state(read_file(state), state).step,
          .manifest_sha256 = sha256(read_file((checkpoint / kManifestName).string()))};
}

fs::path copy_checkpoint(const BranchPoint& from, const fs::path& run) {
  const fs::path folder = checkpoint_folder(run, from.step), unfinished = unfinished_folder(folder);
  const auto fail = [&](const std::string& reason) {
    std::error_code ignored;
    fs::remove_all(run / "checkpoints", ignored);
    fs::remove(run / kUnfinishedBranchFile, ignored);
    throw RunError("--branch: cannot copy " + from.checkpoint.string() + ": " + reason);
  };
  try {
    write_file((run / kUnfinishedBranchFile).string(), from.checkpoint.string() + "\n");
    fs::remove_all(run / "checkpoints");
    start_checkpoint(folder);
    for (const auto& entry : fs::directory_iterator(from.checkpoint)) {
      if (entry.is_regular_file()) copy_durable(entry.path(), unfinished / entry.path().filename());
    }
    sync_folder(unfinished);
  } catch (const std::exception& error) {
    fail(error.what());
  }
  if (const auto corruption = find_corruption(unfinished)) fail(*corruption);
  publish_checkpoint(folder);
  finalize_checkpoint(folder);
  return folder;
}

void finish_branch_start(const fs::path& run) { fs::remove(run / kUnfinishedBranchFile); }

}  // namespace hero
