#pragma once
// Parallel layouts for a model on a cluster, and a search for the fastest.
#include <functional>

#include "perf/prediction.h"

namespace hero {

/// All layouts on the GPUs that check() accepts, as configurations with parallel.data, pipeline, expert,
/// chunks and schedule, train.micro_batch (1 to 16) and train.recompute set. Layers are split
/// by the default rule and, as separate layouts, by balanced_splits; parallel.chunk_sizes of `config` is
/// ignored.
std::vector<Config> layouts(const Config& config, const Cluster& cluster);

/// Decoder layers of each of `chunks` contiguous chunks that minimize the time of the slowest chunk; the last
/// one includes the output projection. Of several such splits two: the one with the most layers in the last
/// chunks and the one with the fewest there.
std::vector<std::vector<int64_t>> balanced_splits(const Config& config, const Cluster& cluster,
                                                  int64_t chunks);

struct Plan {
  Config config;
  Prediction prediction;
};

struct PlanSearch {
  std::vector<Plan> fastest;  ///< layouts that fit into memory, fastest first
  int64_t tried = 0, fitting = 0;
  double min_memory = 0;  ///< bytes of the layout that needs the least memory
};

/// The `keep` fastest layouts. `on_progress` receives the number of layouts evaluated.
PlanSearch search(const std::vector<Config>& layouts, const Cluster& cluster, size_t keep,
                  const std::function<void(int64_t)>& on_progress);

/// The configured layout on all GPUs. UserError if the sizes do not match.
Config configured_layout(const Config& config, const Cluster& cluster);

/// The efficiency for which a step of this layout takes `seconds`. UserError naming --hours if an efficiency
/// of 1 is too slow.
double fit_efficiency(const Config& config, Cluster cluster, double seconds);

/// The same run with a baseline router.
Config as_baseline(Config config);

}  // namespace hero
