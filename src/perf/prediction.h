#pragma once
// Seconds and bytes of a training step on a cluster, from datasheets. docs/plan.md derives every term.
#include "perf/cluster.h"
#include "perf/memory.h"
#include "perf/simulation.h"
#include "perf/step_time.h"

namespace hero {

struct Prediction {
  double seconds = 0;               ///< of an optimizer step
  std::vector<TimePart> parts;      ///< of the busiest pipeline rank; they add up to `seconds`
  std::vector<MemoryPart> memory;   ///< of the GPU that holds most
  std::vector<MemoryPart> traffic;  ///< device_traffic
  double bubble = 0;                ///< share of the pipeline's time in which ranks wait, on average
  double ideal_bubble = 0;          ///< with equal chunks and passes and no messages
  double tokens_per_second = 0, mfu = 0;
};

/// The layout of a configuration for which parallel.data is set; in_flight is left at 1.
Layout layout_of(const Config& config);

/// Micro-batches of a data rank in a step.
int64_t micro_batches_of(const Config& config);

Schedule schedule_of(const Config& config);

/// Passes and messages of a micro-batch.
PipelineCosts pipeline_costs(const Config& config, const Cluster& cluster);

/// By part, of the GPU that holds most.
std::vector<MemoryPart> planned_memory(const Config& config, const Schedule& schedule);

Prediction predict(const Config& config, const Cluster& cluster);

}  // namespace hero
