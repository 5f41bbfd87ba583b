#pragma once
// Reference implementation of training.
#include "oracle/layer_metrics.h"
#include "oracle/optimizer.h"

namespace oracle {

class Training {
 public:
  /// `weights`: copies of a model's initial weights. `rounding`: the gradients of every step are changed by
  /// this, times the largest gradient of any weight, trained or not, with alternating signs.
  Training(const hero::Config& config, Weights weights, double rounding = 0);

  /// Means over micro-batches, the gradient before clipping and its norm.
  struct Step {
    double loss = 0, lm = 0, mtp = 0, balance = 0, z = 0, coupling = 0, gradient_norm = 0;
    std::map<std::string, at::Tensor> gradients;  ///< of every trainable weight
    std::map<std::string, double> norms;          ///< METRIC/COMPONENT/LAYER, METRIC//LAYER of logits
    std::vector<LayerSums> layers;                ///< of every MoE layer
  };
  /// `step` from 1; samples int64 [global batch, S + 1]; documents: Pass::documents_BS of the global batch.
  Step step(int64_t step, const at::Tensor& samples, const at::Tensor& documents = {});

  const Weights& weights() const { return weights_; }
  /// Fractions of the last step's assignments, [L, E].
  const at::Tensor& shares_LE() const { return shares_LE_; }

 private:
  void micro_batch(int64_t step, int64_t i, const at::Tensor& samples, const at::Tensor& documents, Step& out,
                   at::Tensor& assigned_LE);
  void update(int64_t step, Step& found);
  bool trains(const std::string& name) const;
  static void raise_logits(const Result& result, Step& out);
  void update_biases(const at::Tensor& assigned_LE);

  hero::Config config_;
  Weights weights_;
  double rounding_;
  Optimizer optimizer_;
  at::Tensor shares_LE_;
};

/// Linear warmup, then optim.schedule.
double learning_rate(const hero::Config& config, int64_t step);

}  // namespace oracle
