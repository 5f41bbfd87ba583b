#pragma once
// Which layouts there are for a model and a cluster, and which are fast.
#include <functional>

#include "perf/prediction.h"

namespace hero {

/// Every way to spread the run over the GPUs: configurations with parallel.data, pipeline, expert, chunks and
/// schedule, train.micro_batch (powers of two to 16) and train.recompute set, which check() accepts. Layers
/// are split by default and, as another layout, by balanced_chunks; the configuration's own
/// parallel.chunk_sizes are not asked.
std::vector<Config> layouts(const Config& config, const Cluster& cluster);

/// Decoder layers of each of `chunks` neighbouring parts, so that the part that takes longest takes as little
/// time as can be; the last part has the output projection too.
std::vector<int64_t> balanced_chunks(const Config& config, const Cluster& cluster, int64_t chunks);

struct Plan {
  Config config;
  Prediction prediction;
};

struct PlanSearch {
  std::vector<Plan> fastest;  ///< those that fit, fastest first
  int64_t tried = 0, fitting = 0;
  double least_memory = 0;  ///< bytes of the layout that needs least
};

/// `keep` at most. `tell` is called with the number of layouts done.
PlanSearch search(const std::vector<Config>& layouts, const Cluster& cluster, size_t keep,
                  const std::function<void(int64_t)>& tell);

/// The configuration's own layout on all GPUs. UserError where they do not fit together.
Config own_layout(const Config& config, const Cluster& cluster);

/// The efficiency with which a step of this layout takes `seconds`. UserError naming --hours where even all
/// of the GPUs' rate is too little.
double fitted_efficiency(const Config& config, Cluster cluster, double seconds);

/// The same run with a baseline's router, and with HERO's over a history of this scope.
Config as_baseline(Config config);
Config as_hero(Config config, const std::string& history);

}  // namespace hero
