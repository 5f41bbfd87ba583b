#pragma once
// What one optimizer step computes on the model's device. Nothing here waits for the device but read(), once
// a step; so a GPU works while the next kernels are launched.
#include "loss/loss.h"
#include "ops/device_graph.h"
#include "optim/adamw.h"
#include "train/layer_stats.h"

namespace hero {

/// A step's sums, on the CPU. Losses are means over the step's micro-batches.
struct StepSums {
  double loss = 0, lm = 0, balance = 0, z = 0, coupling = 0;
  double gradient_norm = 0;
  LayerStats layers;
};

class TrainStep {
 public:
  /// `model`, `optimizer` and `balance` outlive it.
  TrainStep(Transformer& model, AdamW& optimizer, BalanceState& balance);

  /// Forgets the step before.
  void begin();
  /// Forward and backward pass of samples [B, S+1] on the CPU (pinned where the model is on a GPU): gradients
  /// and sums add up.
  void micro_batch(const at::Tensor& samples, const Position& position);
  /// Clips, updates the weights unless the gradient's norm is not finite, and rebalances: the step's counts
  /// become the next step's global shares, and move the biases of aux-loss-free balancing against the load,
  /// b += rate * sign(mean - count) (arXiv 2408.15664).
  void update(int64_t step, double lr);
  StepSums read() const;

 private:
  void compute(const at::Tensor& samples, const Position& position);
  void rebalance();

  Transformer& model_;
  AdamW& optimizer_;
  BalanceState& balance_;
  at::Tensor sums_;           ///< fp64: everything that read() brings, in one tensor
  at::Tensor losses_, norm_;  ///< parts of it
  LayerStats layers_;
  bool use_graph_;
  at::Tensor recorded_samples_;
  std::unique_ptr<DeviceGraph> graph_;
};

}  // namespace hero
