#pragma once
// Norms of gradients, updates and weights per decoder layer and component, and the largest attention and
// router logits, every train.norms_every steps. norm_metrics() declares what is logged.
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "distributed/world.h"
#include "model/transformer.h"
#include "optim/optimizer.h"

namespace hero {

/// Sums over the weights of a component of one layer.
enum NormSum : int64_t { kGradientSquares, kUpdateSquares, kWeightSquares, kWeights, kEndOfNormSums };

/// A metric with one value per layer and component.
struct NormMetric {
  const char* key;
  double (*reduce)(const double* sums);  ///< by NormSum
};

/// In the order of their JSON keys.
std::span<const NormMetric> norm_metrics();

/// A step's norms on the CPU.
struct Norms {
  at::Tensor sums;  ///< fp64 [decoder layers + 1, components, kEndOfNormSums]; the last row has no layer
  at::Tensor max_logits;  ///< fp64 [2, decoder layers], of attention and routers; -inf: none

  /// Calls visit(key, component, layer, value) for every value; layer -1 for a component without layers, an
  /// empty component for the logits. None: the layer has no such component.
  void for_each(const std::function<void(const std::string& key, const std::string& component, int64_t layer,
                                         std::optional<double> value)>& visit) const;
};

/// Accumulates the norms of one step.
class NormStats {
 public:
  /// All arguments must outlive the object. `world`: null for a single process.
  NormStats(const Transformer& model, const Optimizer& optimizer, const World* world);

  /// For ForwardContext::max_attention_logits.
  at::Tensor max_attention_logits() const { return max_logits_[0]; }
  /// Adds one micro-batch's router logits.
  void add(const std::vector<Routing>& routings);
  /// With the complete gradients, before the weights are updated. Keeps a copy of this rank's values.
  void before_update();
  /// Sums over all ranks.
  Norms after_update();

 private:
  const Transformer& model_;
  const Optimizer& optimizer_;
  const World* world_;
  std::vector<int64_t> decoder_layer_of_moe_;  // l - 1 -> i
  at::Tensor sums_, max_logits_;
  std::vector<at::Tensor> values_;  // before the update, by shard
};

}  // namespace hero
