#pragma once
// hero data show: what a run has read of each source, and what it will have read after train.steps.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

struct SourceUsage {
  std::string prefix;
  double share = 0;           ///< of the samples of its phase, by its weight; in totals: of those of the run
  int64_t epoch_samples = 0;  ///< in an epoch of the source
  int64_t read = 0;           ///< samples of completed steps
  int64_t planned = 0;        ///< samples after train.steps, with those of completed steps
};

struct PhaseUsage {
  int64_t first_step = 1, last_step = 0;  ///< the last one is at most train.steps
  std::vector<SourceUsage> sources;       ///< in the order of the blend
};

struct DataUsage {
  int64_t completed = 0, steps = 0;  ///< of train.steps
  int64_t sequence = 0, global_batch = 0;
  std::vector<PhaseUsage> phases;  ///< those that begin by train.steps
  std::vector<SourceUsage> total;  ///< by source, over all phases
};

/// The --data arguments of a run without phases: those of its newest checkpoint, or of its start if it has
/// none. UserError if the folder records neither.
std::vector<std::string> recorded_data(const std::filesystem::path& run);

/// Counts the samples of all phases; opens the token files. `data`: the --data arguments. UserError as for
/// training.
DataUsage count_data_usage(const Config& config, const std::vector<std::string>& data, int64_t completed);

/// The same for a run folder: its completed steps are those of metrics.jsonl, or of the newest checkpoint if
/// that is later. UserError for a folder that is no run.
DataUsage count_data_usage(const std::filesystem::path& run);

}  // namespace hero
