#pragma once
// The configuration of a new or resumed run, from files, flags, --init-from and the run's own config.toml.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/trainer.h"

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

/// UserError for options that do not match the weights. Files and flags may add a history, extend positions
/// and change training options. Returns whether they add a history.
bool check_init(const InitialModel& initial, const Config& config);

/// The configuration of a resumed run: its own, with the options that the command line changes. UserError for
/// options with kFixedOnResume. With files, these options start from base_config, not from the run.
Config resumed_config(const TrainOptions& options, const std::optional<InitialModel>& initial);

/// UserError if the run ends before the checkpoint: it would claim fewer steps than it has.
void check_steps(const Config& config, const std::filesystem::path& checkpoint);

/// "a, b, c".
std::string comma_separated(const std::vector<std::string>& parts);

}  // namespace hero
