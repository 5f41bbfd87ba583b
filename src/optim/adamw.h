#pragma once
// AdamW (arXiv 1711.05101) over the fp32 values of all parameters, through the library's fused kernel. On a
// GPU nothing here waits for it.
#include "config/config.h"
#include "model/parameters.h"

namespace hero {

class AdamW {
 public:
  AdamW(Parameters& parameters, const OptimConfig& config);

  /// Norm over the gradients of all leaves, in fp64 over per-tensor fp32 norms: a scalar on the parameters'
  /// device. Parameters without a gradient count 0.
  at::Tensor gradient_norm() const;

  /// The first parameter whose gradient is not finite, "" if none.
  std::string non_finite_gradient() const;

  /// Scales the gradients, whose norm is `norm`, to the norm config.clip_norm where it is larger (0: never),
  /// updates values with learning rate `lr` and publishes them to the leaves. A norm that is not finite
  /// updates nothing. `step` counts from 1 (bias correction).
  void step(int64_t step, double lr, const at::Tensor& norm);

  /// Before the next step's backward passes. `keep`: the tensors stay, as zeros.
  void clear_gradients(bool keep = false);

  /// Moments shaped like the parameters, in their order; undefined for frozen ones.
  std::vector<at::Tensor>& exp_avg() { return exp_avg_; }
  std::vector<at::Tensor>& exp_avg_sq() { return exp_avg_sq_; }

 private:
  Parameters* parameters_;
  OptimConfig config_;
  at::Tensor step_;  ///< fp32 scalar on the parameters' device
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;
};

/// Linear warm-up over warmup_steps, then a cosine from lr to min_lr at the last step; `step` from 1 to
/// `steps`.
double learning_rate(const OptimConfig& config, int64_t step, int64_t steps);

}  // namespace hero
