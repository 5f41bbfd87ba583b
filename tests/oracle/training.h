#pragma once
// Training a second time: AdamW as its paper writes it (arXiv 1711.05101, Algorithm 2), weight by weight.
#include "oracle/oracle.h"

namespace oracle {

class Training {
 public:
  /// The copies of a model's weights begin the run.
  Training(const hero::Config& config, Weights weights);

  /// Means over micro-batches, the gradient before clipping and its norm.
  struct Step {
    double loss = 0, lm = 0, balance = 0, z = 0, coupling = 0, gradient_norm = 0;
    std::map<std::string, at::Tensor> gradients;  ///< of every weight that learns
  };
  /// `step` from 1; samples int64 [global batch, S + 1].
  Step step(int64_t step, const at::Tensor& samples);

  const Weights& weights() const { return weights_; }
  /// Shares of the last step's assignments, [L, E].
  const at::Tensor& shares_LE() const { return shares_LE_; }

 private:
  void micro_batch(int64_t step, int64_t i, const at::Tensor& samples, Step& out, at::Tensor& assigned_LE);
  void update(int64_t step, const Step& found);
  void move_biases(const at::Tensor& assigned_LE);

  hero::Config config_;
  Weights weights_;
  std::map<std::string, at::Tensor> first_, second_;  ///< moments
  at::Tensor shares_LE_;
};

/// Linear warm-up, then half a cosine down to min_lr at the last step.
double learning_rate(const hero::Config& config, int64_t step);

}  // namespace oracle
