#pragma once
// The training loop and what surrounds it: starting or resuming a run folder, saving, stopping on a signal.
#include <filesystem>
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

struct TrainOptions {
  std::vector<std::string> config_files, flags;  ///< TOML files in order, then --section.key=value
  std::vector<std::string> data;                 ///< PREFIX or WEIGHT:PREFIX
  std::filesystem::path run;
  bool resume = false;
  std::filesystem::path init_from;  ///< run, checkpoint or model folder whose weights a new run starts with
};

/// Trains until config.train.steps, a signal or a failure. Returns the exit status: 0 when all steps are
/// done, 128 + the signal's number after a save on SIGINT or SIGTERM. UserError for bad input, RunError for a
/// non-finite loss or gradient (naming the step, the parameter and the last good checkpoint) and for what the
/// system refuses.
int train(const TrainOptions& options);

}  // namespace hero
