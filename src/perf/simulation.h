#pragma once
// When every action of a schedule begins and ends, from the seconds of its passes and messages: what `hero
// plan` predicts with, and what drawings show.
#include <limits>

#include "train/schedule.h"

namespace hero {

/// Of every chunk and one micro-batch.
struct PipelineCosts {
  /// Seconds; Pass::backward takes input_gradient + weight_gradient.
  std::vector<double> forward, input_gradient, weight_gradient;
  /// Bytes that chunk c sends to chunk c + 1 behind its forward pass, and to c - 1 behind its input gradient.
  std::vector<double> activations, gradients;
  /// Of a message between two ranks: seconds, and bytes a second. Those of one sender, receiver and kind
  /// follow one another; sending does not keep a rank from computing.
  double latency = 0, bandwidth = std::numeric_limits<double>::infinity();
};

struct Span {
  double start, end;
};

struct Simulation {
  std::vector<std::vector<Span>> spans;  ///< of every action, as in the schedule
  double seconds = 0;                    ///< until the last rank is done
  std::vector<double> busy;              ///< seconds of every rank's passes
  /// Share of the step in which a rank computes nothing.
  double bubble(int64_t rank) const { return 1 - busy[rank] / seconds; }
};

/// Every rank carries out its actions in order, each as soon as what it needs is there. std::logic_error on a
/// deadlock.
Simulation simulate(const Schedule& schedule, const PipelineCosts& costs);

/// Share of the step in which a rank computes nothing where all chunks take equal times, forward, input and
/// weight gradients too, and messages none: (p-1) / (v m + p-1) for p ranks, v chunks a rank and m
/// micro-batches (arXiv 2104.04473, section 2.2), (p-1) / (3 m + p-1) for zero_bubble (arXiv 2401.10241,
/// section 2.3: p-1 times forward + input gradient - weight gradient), for m >= p.
double ideal_bubble(const std::string& kind, int64_t ranks, int64_t chunks, int64_t micro_batches);

}  // namespace hero
