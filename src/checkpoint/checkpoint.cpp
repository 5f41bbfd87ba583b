#include "checkpoint/checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "checkpoint/manifest.h"
#include "config/warnings.h"
#include "io/durable_file.h"
#include "io/error.h"

namespace fs = std::filesystem;

namespace hero {
namespace {

constexpr std::string_view kUnfinished = ".tmp", kReplaced = ".old", kDeleted = ".del", kDamaged = ".damaged";

fs::path with_suffix(const fs::path& folder, std::string_view suffix) {
  return folder.string() + std::string(suffix);
}

void remove_checkpoint(const fs::path& folder) {
  const fs::path deleted = with_suffix(folder, kDeleted);
  fs::remove_all(deleted);
  fs::rename(folder, deleted);
  fs::remove_all(deleted);
}

}  // namespace

fs::path checkpoint_folder(const fs::path& run, int64_t step) {
  return run / "checkpoints" / checkpoint_name(step);
}

fs::path unfinished_folder(const fs::path& folder) { return with_suffix(folder, kUnfinished); }

void start_checkpoint(const fs::path& folder) {
  const fs::path parent = folder.parent_path(), unfinished = unfinished_folder(folder);
  fs::create_directories(parent);
  sync_folder(parent.parent_path());
  fs::remove_all(unfinished);
  fs::create_directory(unfinished);
}

void publish_checkpoint(const fs::path& folder) {
  const fs::path unfinished = unfinished_folder(folder);
  if (renameat2(AT_FDCWD, unfinished.c_str(), AT_FDCWD, folder.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno == EEXIST &&
      renameat2(AT_FDCWD, unfinished.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) {
    throw RunError("cannot rename " + unfinished.string() + ": " + std::strerror(errno));
  }
  // The file system lacks these flags (NFS): two renames. clean_leftovers reverts the first if the second did
  // not happen.
  if (fs::exists(folder)) fs::rename(folder, with_suffix(folder, kReplaced));
  fs::rename(unfinished, folder);
}

void finalize_checkpoint(const fs::path& folder) {
  sync_folder(folder.parent_path());
  fs::remove_all(unfinished_folder(folder));
  fs::remove_all(with_suffix(folder, kReplaced));
}

void prune_checkpoints(const fs::path& run, int keep, int64_t step, int64_t verified, int64_t best) {
  if (keep <= 0) return;
  const auto is_after = [](int64_t limit) {
    return [limit](const fs::path& folder) { return checkpoint_step(folder.filename().string()) > limit; };
  };
  std::vector<fs::path> done = list_checkpoints(run);
  std::erase_if(done, is_after(step));
  const auto before_verified = std::ranges::find_if(done, is_after(verified)) - done.begin() - 1;
  const auto surplus = std::ssize(done) - keep;
  for (int64_t i = 0; i < std::min(surplus, before_verified); ++i) {
    if (checkpoint_step(done[i].filename().string()) != best) remove_checkpoint(done[i]);
  }
}

void clean_leftovers(const fs::path& run) {
  std::vector<fs::path> leftovers;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", missing)) {
    const std::string suffix = entry.path().extension().string();
    const bool is_leftover = suffix == kUnfinished || suffix == kReplaced || suffix == kDeleted;
    if (is_leftover && checkpoint_step(entry.path().stem().string())) leftovers.push_back(entry.path());
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

namespace {

[[noreturn]] void reject(const fs::path& checkpoint, const std::string& corruption) {
  std::string advice;
  const fs::path folder = fs::weakly_canonical(checkpoint), parent = folder.parent_path();
  const auto step = checkpoint_step(folder.filename().string());
  if (step && parent.filename() == "checkpoints") {
    std::vector<fs::path> others = list_checkpoints(parent.parent_path());
    std::erase_if(
        others, [&](const fs::path& other) { return *checkpoint_step(other.filename().string()) >= *step; });
    while (!others.empty() && find_corruption(others.back())) others.pop_back();
    if (!others.empty()) advice = "; the newest intact checkpoint before it is " + others.back().string();
  }
  throw UserError(corruption + advice);
}

}  // namespace

fs::path open_model_folder(const fs::path& dir) {
  auto folder = resolve_model_dir(dir);
  if (!fs::exists(folder / kManifestName)) return folder;  // not a checkpoint
  if (const auto corruption = find_corruption(folder, CheckpointUse::kModel)) reject(folder, *corruption);
  return folder;
}

IntactCheckpoint newest_intact_checkpoint(const fs::path& run) {
  std::vector<DamagedCheckpoint> damaged;
  auto checkpoints = list_checkpoints(run);
  for (; !checkpoints.empty(); checkpoints.pop_back()) {
    auto corruption = find_corruption(checkpoints.back());
    if (!corruption) break;
    damaged.push_back({checkpoints.back(), *corruption});
  }
  if (checkpoints.empty() && !damaged.empty())
    throw UserError(damaged.front().corruption + "; no checkpoint of the run is intact");
  return {checkpoints.empty() ? fs::path() : checkpoints.back(), std::move(damaged)};
}

void set_aside_damaged(const IntactCheckpoint& found) {
  if (found.damaged.empty()) return;
  for (const auto& [folder, corruption] : found.damaged) {
    const fs::path aside = unused_path(with_suffix(folder, kDamaged));
    rename_durable(folder, aside);
    warn({corruption + "; skipped this checkpoint and renamed it to " + aside.filename().string()});
  }
  warn({"resuming from the newest intact checkpoint, " + found.folder.string()});
}

}  // namespace hero
