#pragma once
// Routing statistics per layer, summed over a step's micro-batches, for live monitoring; and the metrics that
// follow from them, declared once: layer_metrics() in layer_stats.cpp.
#include <optional>
#include <span>
#include <string>

#include "model/moe.h"

namespace hero {

/// Sums of a layer over tokens: the columns of Routing::stats (ops::RouteStat), then these.
enum LayerSum : int64_t {
  kEntropy = ops::kRouteStats,  ///< of the routing distribution, nats
  kEndOfLayerSums
};

/// The sums of one layer over all tokens of a step, on the CPU. Micro-batches and ranks are added before.
struct LayerTotals {
  double tokens = 0;
  at::Tensor assigned_E;  ///< assignments before capacity, fp64
  at::Tensor counts_E;    ///< assignments processed, fp64
  at::Tensor shares_E;    ///< counts_E / tokens
  at::Tensor sums;        ///< fp64 [kEndOfLayerSums], by ops::RouteStat and LayerSum
  bool sees_history = false;

  /// Mean over tokens; `column` is an ops::RouteStat or a LayerSum.
  double mean(int64_t column) const;
};

/// A metric with one value per MoE layer, in metrics.jsonl and in TensorBoard.
struct LayerMetric {
  const char* key;  ///< its list in the object `layers` of a line of metrics.jsonl
  /// From the sums over all micro-batches and ranks: a mean, a maximum, a ratio.
  double (*reduce)(const LayerTotals& layer);
  bool of_history = false;  ///< no value for layers that see no history
  bool integer = false;     ///< written as an integer in JSON

  /// None, null in JSON, if the layer has no value.
  std::optional<double> value(const LayerTotals& layer) const;
  /// TensorBoard tag of layer l, from 1: `layers_KEY/l`.
  std::string tag(int64_t l) const;
};

/// The metrics of every layer, in the order of their JSON keys.
std::span<const LayerMetric> layer_metrics();

class LayerStats {
 public:
  /// Number of sums for this number of layers and experts.
  static int64_t size(const HistoryLayout& layout);

  /// Accumulates into `sums`, fp64 [size(layout)] on any device.
  LayerStats(const HistoryLayout& layout, const at::Tensor& sums);

  /// Adds one micro-batch's routing. Does not synchronize with a GPU.
  void add(const std::vector<Routing>& routings);
  /// Adds to the number of tokens, which is kept on the host.
  void add_tokens(int64_t tokens) { tokens_ += tokens; }
  void clear_tokens() { tokens_ = 0; }
  /// A copy with other sums. The methods below need sums on the CPU.
  LayerStats with_sums(const at::Tensor& sums) const;

  /// Assignments of the whole step before capacity, [L, E] fp64.
  const at::Tensor& assigned_LE() const { return assigned_; }
  /// Share of all tokens that each expert received, [L, E] fp64; uniform: K/E.
  at::Tensor shares_LE() const;
  double max_share() const;

  /// What layer_metrics() are computed from, one entry per layer.
  std::vector<LayerTotals> totals() const;

 private:
  const HistoryLayout* layout_;
  int64_t tokens_ = 0;
  at::Tensor assigned_, counts_;  // [L, E]
  at::Tensor sums_;               // [L, kEndOfLayerSums]
};

}  // namespace hero
