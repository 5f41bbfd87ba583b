#include "train/existing_run.h"

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "hf/resolve.h"
#include "io/error.h"
#include "io/file_io.h"
#include "train/branch.h"
#include "train/run_starts.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

// A run folder that lost its configuration must not count as a new or a default run, whose first step would
// truncate metrics.jsonl.
void check_config_is_whole(const fs::path& run) {
  const auto path = run / "config.toml";
  if (!fs::exists(path) && fs::exists(run / kUnfinishedBranchFile)) {
    throw UserError(path.string() + ": not found, the start of this branch was interrupted; " +
                    "repeat the command with --branch");
  }
  const bool logged = fs::exists(run / "metrics.jsonl");
  if (!logged && list_checkpoints(run).empty()) return;
  const std::string remedy = ", expected the configuration of the run with this folder's " +
                             std::string(logged ? "metrics.jsonl" : "checkpoints") +
                             "; restore it, or pass another --run";
  if (!fs::exists(path)) throw UserError(path.string() + ": not found" + remedy);
  if (!read_file(path.string()).ends_with('\n'))
    throw UserError(path.string() + ": found a truncated file" + remedy);
}

// The model folder of --init-from, of which only the configuration is read if the run has a checkpoint.
fs::path find_init_from(const TrainOptions& options, const ExistingRun& found) {
  const fs::path file = options.run / kInitFromFile;
  fs::path given = options.init_from;
  if (given.empty() && found.started && found.newest.folder.empty() && fs::exists(file))
    given = read_file(file.string());
  if (given.empty()) return given;
  return found.newest.folder.empty() ? open_model_folder(given) : resolve_model_dir(given);
}

}  // namespace

void check_new_folder(const fs::path& run) {
  std::vector<std::string> allowed = {"lock", "lock.owner"};
  if (fs::exists(run / kUnfinishedBranchFile))
    allowed.insert(allowed.end(), {kUnfinishedBranchFile, "checkpoints", kStartsFile});
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(run, missing)) {
    const std::string name = entry.path().filename().string();
    if (std::ranges::find(allowed, name) != allowed.end()) continue;
    throw UserError("--run: found " + name + " in " + run.string() +
                    ", expected a new or empty folder with --branch");
  }
}

void check_no_run(const fs::path& run) {
  if (!fs::exists(run / "config.toml")) return;
  throw UserError(run.string() + ": contains a run; pass --resume to continue it, or another --run");
}

ExistingRun find_run(const TrainOptions& options, RunLock& lock) {
  ExistingRun found;
  found.started = fs::exists(options.run / "config.toml");
  if (!options.branch.empty() && !(options.resume && found.started)) {
    check_new_folder(options.run);
    found.parent = find_branch_point(options.branch).checkpoint;
    return found;
  }
  check_config_is_whole(options.run);
  if (!found.started) {
    if (options.resume && options.data.empty() && !options.overrides.sets("data.phase")) {
      throw UserError(options.run.string() + ": no such run to resume (found no config.toml); expected " +
                      "an existing --run, or --data to start a new one");
    }
    found.init_from = find_init_from(options, found);
    return found;
  }
  if (!options.resume) check_no_run(options.run);
  lock = RunLock(options.run);
  clean_leftovers(options.run);
  finish_branch_start(options.run);
  found.newest = newest_intact_checkpoint(options.run);
  found.init_from = find_init_from(options, found);
  return found;
}

}  // namespace hero
