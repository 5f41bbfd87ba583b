#pragma once
// What a run folder contains before training starts.
#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "train/run_lock.h"
#include "train/train.h"

namespace hero {

/// File with the source of the initial weights, needed to restart a run that ended before its first
/// checkpoint.
constexpr const char* kInitFromFile = "init-from";

/// What rank 0 finds and verifies for all ranks.
struct ExistingRun {
  bool started = false;             ///< the folder contains a run
  IntactCheckpoint newest;          ///< to resume from
  std::filesystem::path init_from;  ///< model folder of --init-from; empty: none
  std::filesystem::path parent;     ///< checkpoint of --branch, for a new run; empty: none
};

/// For --branch: UserError if the folder has files, which a branch must not mix with its own. Allowed are
/// those of a branch whose start was interrupted, and the lock of a rejected attempt.
void check_new_folder(const std::filesystem::path& run);

/// UserError if the folder contains a run, which needs --resume.
void check_no_run(const std::filesystem::path& run);

/// Inspects the folder of `options` and verifies the files to read. If it contains a run, locks it and
/// removes leftovers. UserError, also for a run without `resume` and for damaged files.
ExistingRun find_run(const TrainOptions& options, RunLock& lock);

}  // namespace hero
