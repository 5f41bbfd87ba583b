#pragma once
// Sums over a step's micro-batches of what each layer's routing shows, so that routing can be watched live.
#include <nlohmann/json_fwd.hpp>

#include "model/moe.h"

namespace hero {

class LayerStats {
 public:
  /// Sums kept for so many layers and experts.
  static int64_t size(const HistoryLayout& layout);

  /// Adds into `sums`, fp64 of that size on any device.
  LayerStats(const HistoryLayout& layout, const at::Tensor& sums);

  /// Adds one micro-batch's routing. Does not wait for a GPU.
  void add(const std::vector<Routing>& routings);
  /// The tokens of micro-batches that were added, which the host knows.
  void count_tokens(int64_t tokens) { tokens_ += tokens; }
  void clear_tokens() { tokens_ = 0; }
  /// The same with the sums elsewhere: on the CPU, for what follows.
  LayerStats with_sums(const at::Tensor& sums) const;

  /// Assignments before capacity of the whole step, [L, E] fp64.
  const at::Tensor& assigned_LE() const { return assigned_; }
  /// Share of all tokens that each expert received, [L, E] fp64; uniform: K/E.
  at::Tensor shares_LE() const;
  double max_share() const;

  /// Per layer: max_expert_share, max_over_mean, entropy (nats), dropped (assignments), rms_hidden,
  /// rms_history, rho, history_variance_share (null where a layer sees no history).
  nlohmann::ordered_json json() const;

 private:
  const HistoryLayout* layout_;
  int64_t tokens_ = 0;
  at::Tensor assigned_, counts_;  // [L, E]
  at::Tensor sums_;               // [L, 6]: the five columns of Routing::stats, entropy
};

}  // namespace hero
