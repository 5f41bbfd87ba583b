#pragma once
// Reference implementation of training: AdamW as in its paper (arXiv 1711.05101, Algorithm 2).
#include "oracle/oracle.h"

namespace oracle {

class Training {
 public:
  /// `weights`: copies of a model's initial weights.
  Training(const hero::Config& config, Weights weights);

  /// Means over micro-batches, the gradient before clipping and its norm.
  struct Step {
    double loss = 0, lm = 0, balance = 0, z = 0, coupling = 0, gradient_norm = 0;
    std::map<std::string, at::Tensor> gradients;  ///< of every trainable weight
  };
  /// `step` from 1; samples int64 [global batch, S + 1].
  Step step(int64_t step, const at::Tensor& samples);

  const Weights& weights() const { return weights_; }
  /// Fractions of the last step's assignments, [L, E].
  const at::Tensor& shares_LE() const { return shares_LE_; }

 private:
  void micro_batch(int64_t step, int64_t i, const at::Tensor& samples, Step& out, at::Tensor& assigned_LE);
  void update(int64_t step, const Step& found);
  void update_biases(const at::Tensor& assigned_LE);

  hero::Config config_;
  Weights weights_;
  std::map<std::string, at::Tensor> first_, second_;  ///< moments
  at::Tensor shares_LE_;
};

/// Linear warmup, then cosine decay to min_lr at the last step.
double learning_rate(const hero::Config& config, int64_t step);

}  // namespace oracle
