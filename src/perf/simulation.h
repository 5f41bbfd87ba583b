#pragma once
// Simulates a pipeline schedule from the costs of its passes and messages, for predictions and drawings.
#include <limits>

#include "train/schedule.h"

namespace hero {

/// Per chunk, for one micro-batch.
struct PipelineCosts {
  /// Seconds; Pass::backward takes input_gradient + weight_gradient.
  std::vector<double> forward, input_gradient, weight_gradient;
  /// Bytes that chunk c sends to chunk c + 1 after its forward pass, and to c - 1 after its input gradient.
  std::vector<double> activations, gradients;
  /// Of a message between two ranks, in seconds and bytes per second. Messages of one kind between the same
  /// ranks are serialized and overlap with computation.
  double latency = 0, bandwidth = std::numeric_limits<double>::infinity();
};

struct Span {
  double start, end;
};

struct Simulation {
  std::vector<std::vector<Span>> spans;  ///< of every action, indexed like the schedule
  double seconds = 0;                    ///< until the last rank is finished
  std::vector<double> busy;              ///< seconds of computation per rank
  /// Share of the step in which a rank is idle.
  double bubble(int64_t rank) const { return 1 - busy[rank] / seconds; }
};

/// Each rank executes its actions in order, as soon as their inputs are available. std::logic_error on
/// deadlock.
Simulation simulate(const Schedule& schedule, const PipelineCosts& costs);

/// Share of the step in which a rank is idle if all chunks and passes (forward, input gradient, weight
/// gradient) take equal time and messages none: (p-1) / (v m + p-1) for p ranks, v chunks per rank and m
/// micro-batches (arXiv 2104.04473, section 2.2), (p-1) / (3 m + p-1) for zero_bubble (arXiv 2401.10241,
/// section 2.3: p-1 times forward + input gradient - weight gradient), for m >= p.
double ideal_bubble(PipelineSchedule kind, int64_t ranks, int64_t chunks, int64_t micro_batches);

}  // namespace hero
