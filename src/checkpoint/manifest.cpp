#include "checkpoint/manifest.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "io/cores.h"
#include "io/json.h"
#include "io/ordered_parallel.h"
#include "io/sha256.h"

namespace fs = std::filesystem;

namespace hero {
namespace {

std::string canonical(const nlohmann::json& files) {
  return nlohmann::json{{"files", files}, {"sha256", sha256(files.dump())}}.dump(2) + "\n";
}

// Whether it names a file of the folder itself. Other names would read files elsewhere.
bool is_file_name(const std::string& name) {
  return name != "." && name != ".." && fs::path(name).filename() == name &&
         std::ranges::none_of(name, [](unsigned char c) { return c < 0x20; });
}

// The files of a manifest, or nullopt if make_manifest did not write this text.
std::optional<nlohmann::json> read_files(const std::string& text) {
  const auto manifest = parse_json_or_null(text);
  if (!manifest.is_object() || !manifest.contains("files") || !manifest["files"].is_object())
    return std::nullopt;
  const auto& files = manifest["files"];
  for (const auto& [name, entry] : files.items()) {
    if (!is_file_name(name) || !entry.is_object() || !entry.contains("bytes") ||
        !entry["bytes"].is_number_unsigned() || !entry.contains("sha256") || !entry["sha256"].is_string()) {
      return std::nullopt;
    }
  }
  return canonical(files) == text ? std::optional(files) : std::nullopt;
}

// `unread`: the file may be missing, and its contents are not checked.
std::optional<std::string> file_corruption(const fs::path& file, const nlohmann::json& entry, bool unread) {
  const auto bytes = entry["bytes"].get<uintmax_t>();
  const auto hash = entry["sha256"].get<std::string>();
  std::error_code error;
  const uintmax_t found_bytes = fs::file_size(file, error);
  if (error && unread) return std::nullopt;
  if (error) return file.string() + ": missing, expected a file of " + std::to_string(bytes) + " bytes";
  if (found_bytes != bytes) {
    const char* what = found_bytes < bytes ? ": truncated: found " : ": altered: found ";
    return file.string() + what + std::to_string(found_bytes) + " bytes, expected " + std::to_string(bytes);
  }
  if (unread) return std::nullopt;
  const std::string found_hash = hash_file(file).sha256;
  if (found_hash == hash) return std::nullopt;
  return file.string() + ": altered: found sha256 " + found_hash + ", expected " + hash;
}

}  // namespace

std::string make_manifest(const std::map<std::string, FileDigest>& files) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, record] : files) json[name] = {{"bytes", record.bytes}, {"sha256", record.sha256}};
  return canonical(json);
}

std::optional<std::string> find_corruption(const fs::path& folder, CheckpointUse use) {
  const fs::path path = folder / kManifestName;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return path.string() + ": missing, expected the hashes of the checkpoint's files";
  std::ostringstream text;
  text << stream.rdbuf();
  const auto files = read_files(text.str());
  if (!files) {
    return path.string() + ": altered or truncated: found " + std::to_string(text.str().size()) +
           " bytes that do not match the hash in the file, expected the manifest as saved";
  }
  // One thread a file: a hash is computed sequentially, slower than files are read.
  std::optional<std::string> first;
  auto next = files->begin();
  const auto workers = std::min<int64_t>(available_cores(), std::ssize(*files));
  ordered_parallel<nlohmann::json::const_iterator, std::optional<std::string>>(
      static_cast<int>(workers),
      [&](auto& file) {
        if (first || next == files->end()) return false;
        file = next++;
        return true;
      },
      [&](const auto& file, int) {
        const bool unread = use == CheckpointUse::kModel && file.key().starts_with("optimizer");
        return file_corruption(folder / file.key(), *file, unread);
      },
      [&](std::optional<std::string>& corruption) {
        if (!first) first = std::move(corruption);
      });
  return first;
}

}  // namespace hero
