#pragma once
// One variant's training steps, or its forward passes alone, in this process, on random tokens, and what they
// cost.
#include <functional>
#include <optional>
#include <vector>

#include "config/config.h"

namespace hero {

struct StepOptions {
  int64_t steps = 8;     ///< timed
  int64_t warmup = 2;    ///< before them
  bool forward = false;  ///< forward passes of a micro-batch, without gradients and optimizer
};

/// Samples, one per step. The router's time and on the CPU the bytes of tensors come from steps of their own
/// after the timed ones, which nothing observes.
struct StepCosts {
  std::vector<double> step_ms;     ///< an optimizer step over the global batch; none of forward passes
  std::vector<double> forward_ms;  ///< forward pass of one micro-batch, embedding to final norm
  std::vector<double> router_ms;   ///< all routers' forward and backward passes of a step, or forward passes;
                                   ///< empty where they have no operator of their own (router.detach = false)
                                   ///< or a recorded graph is replayed (train.cuda_graph)
  double peak_memory_mib = 0;      ///< peak_memory_mib() up to the last timed step
  double tensor_peak_mib = 0;      ///< most bytes of tensors at a time: weights, optimizer and a step's
  double product_rate = 0;         ///< gemm_rate() of the run's type on its device, operations a second
};

/// Runs warm-up, timed and observed steps on train.device; `on_step` hears of each. RunError for a loss that
/// is not finite, UserError for a device that is not there.
StepCosts measure_steps(const Config& config, const StepOptions& options,
                        const std::function<void()>& on_step);

/// Observed steps after `steps` timed ones.
int64_t observed_steps(int64_t steps);

}  // namespace hero
