#pragma once
// Parallel layouts for a model on a cluster, and a search for the fastest.
#include <functional>

#include "perf/prediction.h"

namespace hero {

/// All layouts on the GPUs that check() accepts, as configurations with parallel.data, pipeline, expert,
/// chunks and schedule, train.micro_batch (1 to 16) and train.recompute set. Layers are split
/// by the default rule and, as separate layouts, by balanced_chunks; parallel.chunk_sizes of `config` is
/// ignored.
std::vector<Config> layouts(const Config& config, const Cluster& cluster);

/// Number of decoder layers in each of `chunks` contiguous chunks that minimizes the time of the slowest
/// chunk; of several such splits, one with fewer layers in the last chunks. The last chunk includes the
/// output projection.
std::vector<int64_t> balanced_chunks(const Config& config, const Cluster& cluster, int64_t chunks);

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
