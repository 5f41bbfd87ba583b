#pragma once
// Opens a run: folder, configuration, data, and the checkpoint to resume from.
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/training_state.h"
#include "data/sampler.h"
#include "distributed/world.h"
#include "hf/load.h"
#include "train/branch.h"
#include "train/run_lock.h"
#include "train/train.h"
#include "train/validation_data.h"

namespace hero {

struct Run {
  RunLock lock;
  Config config;
  at::Device device = at::kCPU;  ///< resolved train.device
  RunInputs inputs;
  std::map<std::string, std::string> changed_data;  ///< see changed_token_files; only with --data-changed
  std::map<std::string, std::string> changed_validation;  ///< files of validation data that were replaced
  std::unique_ptr<TokenStream> stream;
  std::deque<ValidationSet> validation;  ///< empty: eval.every is 0
  std::filesystem::path checkpoint;      ///< to resume from, also at the start of a branch; empty: none
  std::optional<BranchPoint> parent;     ///< of a branch that starts
  std::filesystem::path init_from;       ///< model folder of the initial weights; empty: random
  NewWeights added;                      ///< weights of this run's model that init_from lacks
};

/// Creates or reopens the folder. A folder with a run requires `resume`. A resumed run keeps its
/// configuration; the command line may change only options with kMayChangeOnResume (config/fields.h). So does
/// a branch with its parent's, whose checkpoint it copies. A run that has completed its steps is not changed.
/// With several processes (`world`) rank 0 opens the folder and the others follow. UserError, before anything
/// is written, if the settings or data are invalid, or differ between ranks (configuration, program, data).
Run open_run(const TrainOptions& options, const World* world = nullptr);

}  // namespace hero
