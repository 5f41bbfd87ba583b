#pragma once
// A decoder layer: attention and a feed-forward part, dense or MoE.
#include <optional>
#include <variant>

#include "config/config.h"
#include "model/attention.h"
#include "model/moe.h"

namespace hero {

/// x + attention(norm(x)), then x + feed-forward(norm(x)); the feed-forward is dense or MoE.
class DecoderLayer {
 public:
  /// `i` counts decoder layers from 0, `l` MoE layers from 1; l = 0 for a dense layer.
  DecoderLayer(Parameters& parameters, int64_t i, int64_t l, const Config& config,
               const HistoryLayout& layout, const ModelShard& shard);

  struct Output {
    at::Tensor x;                    ///< [B, S, D]
    std::optional<Routing> routing;  ///< of a MoE layer
  };
  Output operator()(const at::Tensor& x, const RotaryTable& rotary, RoutingHistory& history,
                    const ForwardContext& context, const Extension* extension) const;

  const Moe* moe() const { return std::get_if<Moe>(&mlp_); }
  /// Whether it has weights that are not frozen.
  bool is_trainable() const { return trains_all_ || moe(); }

 private:
  int64_t index_;  ///< among all decoder layers
  double eps_;
  bool document_mask_, trains_all_;
  at::Tensor input_norm_, post_norm_;
  std::variant<std::monostate, GroupedQueryAttention, LatentAttention> attention_;
  std::variant<std::monostate, FeedForward, Moe> mlp_;
};

}  // namespace hero
