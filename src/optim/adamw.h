#pragma once
// AdamW (arXiv 1711.05101) over the fp32 values of all parameters, through the library's fused kernel. On a
// GPU nothing here waits for it.
#include "config/config.h"
#include "model/parameters.h"
#include "optim/piece.h"

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

  /// Values and moments of what this process updates: whole parameters, in their order.
  std::vector<Piece>& pieces() { return pieces_; }

 private:
  Parameters* parameters_;
  OptimConfig config_;
  at::Tensor step_;  ///< fp32 scalar on the parameters' device
  std::vector<Piece> pieces_;
};

/// Linear warm-up over warmup_steps, then a cosine from lr to min_lr at the last step; `step` from 1 to
/// `steps`.
double learning_rate(const OptimConfig& config, int64_t step, int64_t steps);

}  // namespace hero
