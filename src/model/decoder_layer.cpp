#include "model/decoder_layer.h"

#include "ops/ops.h"

namespace hero {

DecoderLayer::DecoderLayer(Parameters& parameters, int64_t i, int64_t l, const Config& config,
                           const HistoryLayout& layout, const ModelShard& shard)
    : index_(i),
      eps_(config.model.rms_norm_eps),
      document_mask_(config.train.document_mask),
      trains_all_(config.train.trains_all()) {
  const auto& model = config.model;
  const std::string prefix = "model.layers." + std::to_string(i);
  input_norm_ = parameters.add(prefix + ".input_layernorm.weight", {model.hidden_size}, constant_init(1),
                               /*decay=*/false);
  if (model.is_deepseek()) {
    attention_.emplace<LatentAttention>(parameters, prefix + ".self_attn", model);
  } else {
    attention_.emplace<GroupedQueryAttention>(parameters, prefix + ".self_attn", model);
  }
  post_norm_ = parameters.add(prefix + ".post_attention_layernorm.weight", {model.hidden_size},
                              constant_init(1), false);
  if (l > 0) {
    mlp_.emplace<Moe>(parameters, prefix + "." + std::string(model.type().moe_block), l, config, layout,
                      shard);
  } else {
    mlp_.emplace<FeedForward>(parameters, prefix + ".mlp", model.hidden_size, model.intermediate_size,
                              model.initializer_range);
  }
}

DecoderLayer::Output DecoderLayer::operator()(const at::Tensor& x, const RotaryTable& rotary,
                                              RoutingHistory& history, const ForwardContext& context,
                                              const Extension* extension) const {
  // first.sum is x [T, D]; using it here lets add_rms_norm add the residual's gradient in its own backward
  // pass.
  const auto first = ops::add_rms_norm(x.reshape({-1, x.size(2)}), {}, input_norm_, eps_);
  const auto& max_logits = context.max_attention_logits;
  const AttentionOptions options{.starts_BS = document_mask_ ? context.starts_BS : at::Tensor(),
                                 .max_logit = max_logits.defined() ? max_logits[index_] : at::Tensor()};
  const auto attend = [&](const auto& attention) {
    return attention(first.normed, x.size(0), rotary, extension, options);
  };
  const auto* grouped = std::get_if<GroupedQueryAttention>(&attention_);
  const auto attended_TD = grouped ? attend(*grouped) : attend(std::get<LatentAttention>(attention_));
  const auto second = ops::add_rms_norm(first.sum, attended_TD, post_norm_, eps_);
  if (const auto* dense = std::get_if<FeedForward>(&mlp_))
    return {(second.sum + (*dense)(second.normed)).view(x.sizes()), std::nullopt};
  auto [y_TD, routing] = std::get<Moe>(mlp_)(second.normed, history, context, second.sum);
  return {y_TD.view(x.sizes()), std::move(routing)};
}

}  // namespace hero
