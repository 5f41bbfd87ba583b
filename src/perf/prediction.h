#pragma once
// Predicted time and memory of a training step on a cluster, from datasheets. docs/plan.md derives each term.
#include "perf/cluster.h"
#include "perf/memory.h"
#include "perf/simulation.h"
#include "perf/step_time.h"

namespace hero {

struct Prediction {
  double seconds = 0;               ///< per optimizer step
  std::vector<TimeItem> time;       ///< of the busiest pipeline rank; adds up to `seconds`
  std::vector<MemoryItem> memory;   ///< of the GPU with the most memory
  std::vector<MemoryItem> traffic;  ///< device_traffic
  double bubble = 0;                ///< mean share of the pipeline's time in which a rank is idle
  double ideal_bubble = 0;          ///< with equal chunks and passes and free communication
  double tokens_per_second = 0, mfu = 0;
};

/// The layout of a configuration with parallel.data set; in_flight is 1.
Layout layout_of(const Config& config);

/// Micro-batches per data rank and step.
int64_t micro_batches_of(const Config& config);

Schedule schedule_of(const Config& config);

/// Costs of a micro-batch's passes and messages.
PipelineCosts pipeline_costs(const Config& config, const Cluster& cluster);

/// Memory of the GPU that needs the most.
std::vector<MemoryItem> planned_memory(const Config& config, const Schedule& schedule);

Prediction predict(const Config& config, const Cluster& cluster);

}  // namespace hero
