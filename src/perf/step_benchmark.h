#pragma once
// Measures training steps or forward passes of one model in this process, on random tokens.
#include <functional>
#include <optional>
#include <vector>

#include "config/config.h"

namespace hero {

struct StepOptions {
  int64_t steps = 8;     ///< timed steps
  int64_t warmup = 2;    ///< untimed steps before them
  bool forward = false;  ///< forward passes of one micro-batch, without gradients and optimizer
};

/// Samples, one per step. Router times and, on the CPU, tensor bytes come from additional profiled steps
/// after the timed ones.
struct StepCosts {
  std::vector<double> step_ms;     ///< optimizer step over the global batch; empty with StepOptions::forward
  std::vector<double> forward_ms;  ///< forward pass of one micro-batch, embedding to final norm
  std::vector<double> router_ms;   ///< all routers' forward and backward passes in a step, or forward only;
                                   ///< empty without a router operator (router.detach = false) or with a
                                   ///< replayed graph (train.cuda_graph)
  double peak_memory_mib = 0;      ///< peak_memory_mib() up to the last timed step
  double tensor_peak_mib = 0;      ///< peak bytes of tensors: weights, optimizer and a step's
  double gemm_flops = 0;           ///< gemm_flops_per_second() in train.dtype on the device
};

/// Runs warm-up, timed and profiled steps on train.device and calls `on_step` after each. RunError for a
/// non-finite loss, UserError if the device is not available.
StepCosts measure_steps(const Config& config, const StepOptions& options,
                        const std::function<void()>& on_step);

/// Number of profiled steps after `steps` timed ones.
int64_t profiled_steps(int64_t steps);

}  // namespace hero
