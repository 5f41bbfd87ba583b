#pragma once
// One optimizer step on the model's device. Only read(), called once per step, synchronizes with the device,
// so kernels are launched ahead of a GPU.
#include "loss/loss.h"
#include "ops/device_graph.h"
#include "optim/optimizer.h"
#include "train/layer_stats.h"
#include "train/norms.h"
#include "train/pipeline.h"

namespace hero {

/// A step's sums over all ranks, on the CPU. Losses are means over the step's micro-batches, that of `lm` a
/// mean over trained tokens if begin() was given their number.
struct StepSums {
  double loss = 0, lm = 0, mtp = 0, balance = 0, z = 0, coupling = 0;
  double gradient_norm = 0;
  int stop_signal = 0;        ///< received by any rank; 0: none
  Pipeline::Traffic traffic;  ///< between pipeline ranks, summed over all ranks
  std::vector<double> busy;   ///< argument of begin() on every rank
  LayerStats layers;
  std::optional<Norms> norms;  ///< if begin() requested them
};

class TrainStep {
 public:
  /// All arguments must outlive the TrainStep. `world`: null for a single process.
  TrainStep(Transformer& model, Optimizer& optimizer, BalanceState& balance, const World* world = nullptr);

  /// Starts a new step. `busy`: seconds of the previous step in which this rank did not wait for others.
  /// `norms`: the step computes norms. `trained_tokens`: if micro-batches have labels, the targets of the
  /// global batch that are trained on; the cross-entropy is their mean, 0 if there are none.
  /// `module_targets`: the same for every multi-token prediction module; empty: all micro-batches have
  /// equally many.
  void begin(double busy = 0, bool norms = false, std::optional<int64_t> trained_tokens = {},
             const std::vector<int64_t>& module_targets = {});
  /// Runs this rank's part of a step. `read(i)` returns micro-batch i of `micro_batches` of its data rank.
  /// Without a pipeline, `stopped` is queried between micro-batches. Returns false if it ended the step,
  /// which changes only gradients and sums.
  bool run(
      int64_t micro_batches, const std::function<MicroBatch(int64_t i)>& read,
      const std::function<bool()>& stopped = [] { return false; });
  /// Forward and backward pass. Accumulates gradients and sums. `samples` [B, S+1], `labels`, if given, and
  /// the document starts of `position`, if any, are on the CPU, pinned if the model is on a GPU.
  void micro_batch(const at::Tensor& samples, const ForwardContext& position, const at::Tensor& labels = {});
  /// Requests all ranks to stop after this step. Call before update().
  void request_stop(int signal);
  /// All-reduces the sums, clips gradients, updates the weights unless the gradient norm is not finite, and
  /// updates the balance state: the step's counts become the next step's global shares, and the biases of
  /// aux-loss-free balancing change by b += rate * sign(mean - count) (arXiv 2408.15664). Neither changes if
  /// `skips` returns true for the step's loss and gradient norm, which waits for the device.
  /// `number`: of this update among the applied ones, from 1, for AdamW's bias correction.
  void update(int64_t number, double lr, const std::function<bool(double loss, double norm)>& skips = {});
  StepSums read() const;

 private:
  void compute(const at::Tensor& samples, const ForwardContext& position, const at::Tensor& labels);
  /// Adds a chunk's losses and routing statistics to the sums; returns its weighted loss.
  Pipeline::ChunkLoss accumulate_losses(const ModelChunk& chunk, const Transformer::Output& output,
                                        const at::Tensor& labels, const at::Tensor& starts_BS,
                                        const at::Tensor& mass_T = {});
  /// A micro-batch's share of the global batch.
  double batch_share() const;
  void rebalance();
  /// `context` with its document starts on the device, and norms if the step computes them.
  ForwardContext prepared(ForwardContext context) const;

  Transformer& model_;
  Optimizer& optimizer_;
  BalanceState& balance_;
  const World* world_;
  std::unique_ptr<Pipeline> pipeline_;
  at::Tensor sums_;                             ///< fp64: everything that read() returns, in one tensor
  at::Tensor losses_, gradient_square_, busy_;  ///< views of sums_
  LayerStats layers_;
  std::optional<NormStats> norm_stats_;  // of a step that computes norms
  std::optional<Norms> norms_;
  std::optional<double> normalizer_;        // of the cross-entropy of a micro-batch
  std::vector<double> module_normalizers_;  // the same of every module
  bool use_graph_;
  at::Tensor graph_samples_;
  std::unique_ptr<DeviceGraph> graph_;
};

}  // namespace hero
