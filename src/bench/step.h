#pragma once
// One variant's training steps in this process, on random tokens, and what they cost.
#include <functional>
#include <optional>
#include <vector>

#include "config/config.h"

namespace hero {

struct StepOptions {
  int64_t steps = 8;   ///< timed
  int64_t warmup = 2;  ///< before them
};

/// Samples, one per step. The router's time and the bytes of tensors come from steps of their own after the
/// timed ones, which nothing observes.
struct StepCosts {
  std::vector<double> step_ms;     ///< an optimizer step over the global batch
  std::vector<double> forward_ms;  ///< forward pass of one micro-batch, embedding to final norm, mean over a
                                   ///< step's
  std::vector<double> router_ms;   ///< all routers' forward and backward passes of a step; empty where they
                                   ///< have no operator of their own (router.detach = false)
  double peak_memory_mib = 0;      ///< highest resident memory of this process up to the last timed step
  double tensor_peak_mib = 0;      ///< most bytes of tensors at a time: weights, optimizer and a step's
};

/// Runs warm-up, timed and observed steps; `on_step` hears of each. RunError for a loss that is not finite.
StepCosts measure_steps(const Config& config, const StepOptions& options,
                        const std::function<void()>& on_step);

/// Observed steps after `steps` timed ones.
int64_t observed_steps(int64_t steps);

}  // namespace hero
