#pragma once
// hero train: opens or resumes a run, in one process or as a rank of several, and trains it.
#include <filesystem>
#include <string>
#include <vector>

#include "config/overrides.h"

namespace hero {

struct TrainOptions {
  ConfigOverrides overrides;      ///< of --config and --section.key=value
  std::vector<std::string> data;  ///< PREFIX or WEIGHT:PREFIX
  std::filesystem::path run;
  bool resume = false;
  bool data_changed = false;        ///< resume or branch although token files have changed
  std::filesystem::path init_from;  ///< run, checkpoint or model folder of a new run's weights
  std::string branch;               ///< RUN, RUN@STEP or checkpoint folder from which a new run continues
};

/// Trains until config.train.steps, a signal or a failure. Returns the exit status: 0 after all steps, 128 +
/// the signal number after a save on SIGINT or SIGTERM. UserError for invalid input. RunError for a
/// non-finite loss or gradient (naming the step, the parameter and the last good checkpoint) and for system
/// errors.
int train(const TrainOptions& options);

}  // namespace hero
