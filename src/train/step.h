#pragma once
// What one optimizer step computes on the model's device. Nothing here waits for the device but read(), once
// a step; so a GPU works while the next kernels are launched.
#include "loss/loss.h"
#include "ops/device_graph.h"
#include "optim/adamw.h"
#include "train/layer_stats.h"
#include "train/pipeline.h"

namespace hero {

/// A step's sums over all ranks, on the CPU. Losses are means over the step's micro-batches.
struct StepSums {
  double loss = 0, lm = 0, balance = 0, z = 0, coupling = 0;
  double gradient_norm = 0;
  int stop_signal = 0;        ///< that some rank has received; 0: none
  Pipeline::Traffic traffic;  ///< between pipeline ranks, of all of them together
  std::vector<double> busy;   ///< of every rank, what it told begin()
  LayerStats layers;
};

class TrainStep {
 public:
  /// All outlive it. `world`: null for a process alone.
  TrainStep(Transformer& model, AdamW& optimizer, BalanceState& balance, const World* world = nullptr);

  /// Forgets the step before. `busy`: seconds of it in which this rank did not wait for others.
  void begin(double busy = 0);
  /// This rank's part of a step: `read(i)` gives the i-th of its data rank's `micro_batches`.
  void run(int64_t micro_batches, const std::function<MicroBatch(int64_t i)>& read);
  /// Forward and backward pass of samples [B, S+1] on the CPU (pinned where the model is on a GPU): gradients
  /// and sums add up.
  void micro_batch(const at::Tensor& samples, const Position& position);
  /// Before update: this rank wants all to stop after the step.
  void ask_to_stop(int signal);
  /// Sums over the ranks, clips, updates the weights unless the gradient's norm is not finite, and
  /// rebalances: the step's counts become the next step's global shares, and move the biases of aux-loss-free
  /// balancing against the load, b += rate * sign(mean - count) (arXiv 2408.15664).
  void update(int64_t step, double lr);
  StepSums read() const;

 private:
  void compute(const at::Tensor& samples, const Position& position);
  /// Adds what a chunk has to say about a micro-batch to the sums; returns its loss times its share.
  Pipeline::ChunkLoss account(const Chunk& chunk, const Transformer::Output& output,
                              const at::Tensor& samples, const at::Tensor& mass_T = {});
  void rebalance();

  Transformer& model_;
  AdamW& optimizer_;
  BalanceState& balance_;
  const World* world_;
  std::unique_ptr<Pipeline> pipeline_;
  at::Tensor sums_;  ///< fp64: everything that read() brings, in one tensor
  at::Tensor losses_, gradient_square_, signals_, busy_;  ///< parts of it
  LayerStats layers_;
  bool use_graph_;
  at::Tensor recorded_samples_;
  std::unique_ptr<DeviceGraph> graph_;
};

}  // namespace hero
