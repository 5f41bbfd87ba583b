#pragma once
// hero train --branch: a new run that continues from another run's checkpoint, which it copies. The other run
// is only read, so that it may train meanwhile.
#include <cstdint>
#include <filesystem>
#include <string>

#include "config/config.h"

namespace hero {

/// File in the folder of a branch until its start is complete. One whose process was killed before may start
/// again.
constexpr const char* kUnfinishedBranchFile = "branch.unfinished";

/// The checkpoint that a run branched from.
struct BranchPoint {
  std::filesystem::path checkpoint;  ///< absolute
  int64_t step = 0;
  std::string manifest_sha256;  ///< of its manifest.json
};

/// Resolves `branch`: a run folder (its newest intact checkpoint), RUN@STEP or a checkpoint folder; verifies
/// the files. UserError, which for a missing step names those that exist.
BranchPoint find_branch_point(const std::string& branch);

/// The configuration of the newest checkpoint with a valid config.toml; verifies no other file. UserError as
/// find_branch_point.
Config branch_config(const std::string& branch);

/// Reads the branch point at a checkpoint that was verified.
BranchPoint read_branch_point(const std::filesystem::path& checkpoint);

/// Copies the checkpoint into the run folder `run` and verifies the copy, which it returns. Replaces what an
/// interrupted start left. RunError; the parent may have deleted the checkpoint meanwhile.
std::filesystem::path copy_checkpoint(const BranchPoint& from, const std::filesystem::path& run);

/// The start of the branch is complete: config.toml exists.
void finish_branch_start(const std::filesystem::path& run);

}  // namespace hero
