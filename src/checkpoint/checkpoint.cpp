#include "checkpoint/checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>

#include "checkpoint/manifest.h"
#include "config/error.h"
#include "folder/durable_file.h"

namespace fs = std::filesystem;

namespace hero {
namespace {

constexpr std::string_view kUnfinished = ".tmp", kReplaced = ".old", kDeleted = ".del";

fs::path with_suffix(const fs::path& folder, std::string_view suffix) {
  return folder.string() + std::string(suffix);
}

void copy_into(const fs::path& source, const fs::path& target) {
  std::ifstream stream(source, std::ios::binary);
  if (!stream) throw RunError("cannot read " + source.string() + ": " + std::strerror(errno));
  DurableFile file(target);
  std::vector<char> block(1 << 20);
  do {
    stream.read(block.data(), static_cast<std::streamsize>(block.size()));
    file.write(block.data(), static_cast<size_t>(stream.gcount()));
  } while (stream);
  if (stream.bad()) throw RunError("cannot read " + source.string() + ": " + std::strerror(errno));
  file.commit();
}

void write_contents(const fs::path& folder, const CheckpointContents& contents, size_t max_shard_bytes) {
  std::set<std::string> names{kManifestName};
  const auto claim = [&](const std::string& name) {
    if (!names.insert(name).second) throw RunError("two files named " + name);
  };
  for (const std::string& name : write_sharded(folder, "model", contents.model, max_shard_bytes)) claim(name);
  for (const std::string& name : write_sharded(folder, "optimizer", contents.optimizer, max_shard_bytes))
    claim(name);
  for (const auto& [name, text] : contents.texts) {
    claim(name);
    write_durable(folder / name, text);
  }
  for (const fs::path& source : contents.copies) {
    claim(source.filename().string());
    copy_into(source, folder / source.filename());
  }
  write_durable(folder / kManifestName, make_manifest(folder));
  sync_folder(folder);
}

// Puts a complete folder in its place. What was there lies under a leftover's name afterwards.
void publish(const fs::path& unfinished, const fs::path& folder) {
  if (renameat2(AT_FDCWD, unfinished.c_str(), AT_FDCWD, folder.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno == EEXIST &&
      renameat2(AT_FDCWD, unfinished.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) {
    throw RunError("cannot rename " + unfinished.string() + ": " + std::strerror(errno));
  }
  // A file system without these flags (NFS): two renames, and clean_leftovers undoes the first if the second
  // is lost.
  if (fs::exists(folder)) fs::rename(folder, with_suffix(folder, kReplaced));
  fs::rename(unfinished, folder);
}

void remove_checkpoint(const fs::path& folder) {
  const fs::path doomed = with_suffix(folder, kDeleted);
  fs::remove_all(doomed);
  fs::rename(folder, doomed);
  fs::remove_all(doomed);
}

}  // namespace

fs::path save_checkpoint(const fs::path& run, int64_t step, const CheckpointContents& contents, int keep,
                         size_t max_shard_bytes) {
  const fs::path parent = run / "checkpoints", folder = parent / checkpoint_name(step);
  const fs::path unfinished = with_suffix(folder, kUnfinished);
  const std::string failed = "cannot save checkpoint " + folder.string() + ": ";
  try {
    fs::create_directories(parent);
    sync_folder(run);
    fs::remove_all(unfinished);
    fs::create_directory(unfinished);
    write_contents(unfinished, contents, max_shard_bytes);
    publish(unfinished, folder);
  } catch (const std::exception& error) {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);
    throw RunError(failed + error.what() + "; earlier checkpoints are intact");
  }
  sync_folder(parent);
  try {
    fs::remove_all(unfinished);
    fs::remove_all(with_suffix(folder, kReplaced));
    std::vector<fs::path> done = list_checkpoints(run);
    std::erase_if(done,
                  [&](const fs::path& other) { return *checkpoint_step(other.filename().string()) > step; });
    const size_t kept = keep > 0 ? static_cast<size_t>(keep) : done.size();
    for (size_t i = 0; i + kept < done.size(); ++i) remove_checkpoint(done[i]);
  } catch (const std::exception& error) {
    throw RunError("checkpoint " + folder.string() +
                   " is saved, but an old one cannot be removed: " + error.what());
  }
  return folder;
}

void clean_leftovers(const fs::path& run) {
  std::vector<fs::path> leftovers;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", missing)) {
    const std::string suffix = entry.path().extension().string();
    const bool ours = suffix == kUnfinished || suffix == kReplaced || suffix == kDeleted;
    if (ours && checkpoint_step(entry.path().stem().string())) leftovers.push_back(entry.path());
  }
  try {
    for (const fs::path& leftover : leftovers) {
      const fs::path folder = leftover.parent_path() / leftover.stem();
      if (leftover.extension() == kReplaced && !fs::exists(folder)) {
        rename_durable(leftover, folder);
      } else {
        fs::remove_all(leftover);
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw RunError(std::string("cannot remove an unfinished checkpoint: ") + error.what());
  }
}

void verify_checkpoint(const fs::path& checkpoint) {
  const auto damage = find_damage(checkpoint);
  if (!damage) return;
  std::string advice;
  const fs::path folder = fs::weakly_canonical(checkpoint), parent = folder.parent_path();
  const auto step = checkpoint_step(folder.filename().string());
  if (step && parent.filename() == "checkpoints") {
    std::vector<fs::path> others = list_checkpoints(parent.parent_path());
    std::erase_if(
        others, [&](const fs::path& other) { return *checkpoint_step(other.filename().string()) >= *step; });
    while (!others.empty() && find_damage(others.back())) others.pop_back();
    if (!others.empty()) advice = "; the newest intact checkpoint before it is " + others.back().string();
  }
  throw UserError(*damage + advice);
}

}  // namespace hero
