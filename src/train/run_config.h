#pragma once
// The configuration of a new or resumed run, from files, flags, --init-from and the run's own config.toml.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hf/load.h"
#include "train/train.h"

namespace hero {

/// The model of --init-from.
struct InitialModel {
  std::filesystem::path folder;
  Config config;
};

/// `init_from`: a folder from open_model_folder. nullopt if it is empty.
std::optional<InitialModel> find_initial_model(const std::filesystem::path& init_from);

/// Configuration before files and flags: defaults, or the initial model's.
Config base_config(const std::optional<InitialModel>& initial);

/// UserError for options that do not match the weights. Files and flags may add a history and multi-token
/// prediction modules, extend positions and change training options. Returns what they add.
NewWeights check_init(const InitialModel& initial, const Config& config);

/// The steps that a resumed run or a branch continues from; none without a checkpoint.
struct CompletedSteps {
  std::filesystem::path checkpoint;
  int64_t count = 0;
};

/// The configuration of a resumed run or a branch: its own, in the file `own`, with the options that the
/// command line changes. With files, options with kFixedOnResume start from base_config, not from the run.
/// UserError if
/// - one of these options differs,
/// - the run ends before the checkpoint: it would claim fewer steps than it has,
/// - another train.steps changes the schedule's learning rate of completed steps, unless a flag sets
///   optim.decay_steps or the schedule is another one.
Config resumed_config(const TrainOptions& options, const std::filesystem::path& own,
                      const std::optional<InitialModel>& initial, const CompletedSteps& completed);

/// "a, b, c".
std::string comma_separated(const std::vector<std::string>& parts);

}  // namespace hero
