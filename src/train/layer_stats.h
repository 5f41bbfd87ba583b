#pragma once
// Routing statistics per layer, summed over a step's micro-batches, for live monitoring.
#include <nlohmann/json_fwd.hpp>

#include "model/moe.h"

namespace hero {

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

  /// Per layer: max_expert_share, max_over_mean, entropy (nats), dropped (assignments), rms_hidden,
  /// rms_history, rho, history_variance_share (null for layers without history).
  nlohmann::ordered_json json() const;

 private:
  const HistoryLayout* layout_;
  int64_t tokens_ = 0;
  at::Tensor assigned_, counts_;  // [L, E]
  at::Tensor sums_;               // [L, 6]: the five columns of Routing::stats, entropy
};

}  // namespace hero
