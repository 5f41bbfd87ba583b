#pragma once
// AdamW (arXiv 1711.05101) over the fp32 values of all parameters. On a GPU nothing here waits for it.
#include "config/config.h"
#include "optim/buckets.h"

namespace hero {

class AdamW {
 public:
  /// A process alone: it owns every parameter whole.
  AdamW(Parameters& parameters, const OptimConfig& config);
  /// Parameters and their state shared out as Buckets does. Load weights before.
  AdamW(Parameters& parameters, const OptimConfig& config, const Group& data, const Group& replica);

  /// Gradients that other ranks share; null: this process owns all.
  Buckets* buckets() { return buckets_.get(); }

  /// Sum of squares over the gradients of this rank's pieces (ops::sum_of_squares): a scalar on the
  /// parameters' device. Parameters without a gradient count 0.
  at::Tensor gradient_square() const;

  /// The first parameter whose gradient is not finite, "" if none on this rank.
  std::string non_finite_gradient() const;

  /// Scales the gradients, whose norm is `norm`, to the norm config.clip_norm where it is larger (0: never),
  /// updates values with learning rate `lr` and publishes them to the leaves. A norm that is not finite
  /// updates nothing. `step` counts from 1 (bias correction).
  void step(int64_t step, double lr, const at::Tensor& norm);

  /// Before the next step's backward passes. `keep`: the tensors stay, as zeros.
  void clear_gradients(bool keep = false);

  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  AdamW(Parameters& parameters, const OptimConfig& config, std::unique_ptr<Buckets> buckets);
  /// Flat; undefined where there is none.
  at::Tensor gradient(const Piece& piece) const;

  Parameters* parameters_;
  OptimConfig config_;
  at::Tensor step_;  ///< fp32 scalar on the parameters' device
  std::unique_ptr<Buckets> buckets_;
  std::vector<Piece> pieces_;
};

/// Linear warm-up over warmup_steps, then a cosine from lr to min_lr at the last step; `step` from 1 to
/// `steps`.
double learning_rate(const OptimConfig& config, int64_t step, int64_t steps);

}  // namespace hero
