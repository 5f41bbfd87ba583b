#include "model/transformer.h"

#include <ATen/ATen.h>

#include "model/recompute.h"
#include "ops/ops.h"

namespace hero {

DecoderLayer::DecoderLayer(Parameters& parameters, int64_t i, int64_t l, const Config& config,
                           const HistoryLayout& layout)
    : eps_(config.model.rms_norm_eps) {
  const auto& model = config.model;
  const std::string prefix = "model.layers." + std::to_string(i);
  input_norm_ = parameters.add(prefix + ".input_layernorm.weight", {model.hidden_size}, constant_init(1),
                               /*decay=*/false);
  if (model.model_type == "deepseek_v3") {
    attention_.emplace<LatentAttention>(parameters, prefix + ".self_attn", model);
  } else {
    attention_.emplace<GroupedQueryAttention>(parameters, prefix + ".self_attn", model);
  }
  post_norm_ = parameters.add(prefix + ".post_attention_layernorm.weight", {model.hidden_size},
                              constant_init(1), false);
  if (l > 0) {
    moe_.emplace(parameters, prefix + ".mlp", l, config, layout);
  } else {
    dense_.emplace(parameters, prefix + ".mlp", model.hidden_size, model.intermediate_size,
                   model.initializer_range);
  }
}

DecoderLayer::Output DecoderLayer::operator()(const at::Tensor& x, const RotaryTable& rotary,
                                              RoutingHistory& history, const Position& position,
                                              LayerCache* cache) const {
  const auto normed = ops::rms_norm(x, input_norm_, eps_);
  const auto* grouped = std::get_if<GroupedQueryAttention>(&attention_);
  const auto h = x + (grouped ? (*grouped)(normed, rotary, cache)
                              : std::get<LatentAttention>(attention_)(normed, rotary, cache));
  const auto input_TD = ops::rms_norm(h, post_norm_, eps_).view({-1, h.size(2)});
  if (!moe_) return {h + (*dense_)(input_TD).view(h.sizes()), std::nullopt};
  auto [y_TD, routing] = (*moe_)(input_TD, history, position);
  return {h + y_TD.view(h.sizes()), std::move(routing)};
}

Transformer::Transformer(const Config& config, at::Device device)
    : config_(config),
      layout_(moe_layers(config.model), config.model.num_experts, config.router),
      parameters_(train_dtype(config), static_cast<uint64_t>(config.train.seed), device),
      rotary_frequencies_(rotary_frequencies(config.model, train_dtype(config)).to(device)) {
  const auto& model = config_.model;
  const auto init = normal_init(model.initializer_range);
  embedding_ = parameters_.add("model.embed_tokens.weight", {model.vocab_size, model.hidden_size}, init,
                               /*decay=*/true);
  const auto numbers = moe_numbers(model);
  for (int64_t i = 0; i < model.num_hidden_layers; ++i)
    layers_.emplace_back(parameters_, i, numbers[i], config_, layout_);
  norm_ = parameters_.add("model.norm.weight", {model.hidden_size}, constant_init(1), false);
  head_ = model.tie_word_embeddings
              ? embedding_
              : parameters_.add("lm_head.weight", {model.vocab_size, model.hidden_size}, init, true);
  if (config_.train.trainable == "routers") {
    parameters_.freeze_unless([](const std::string& name) { return name.ends_with(".mlp.gate.weight"); });
  }
}

Transformer::Output Transformer::forward(const at::Tensor& tokens_BS, const Position& position,
                                         bool recompute, KeyValueCache* cache,
                                         std::vector<at::Tensor>* states) const {
  const int64_t batch = tokens_BS.size(0), length = tokens_BS.size(1), past = cache ? cache->length : 0;
  const auto& model = config_.model;
  const auto rotary = rotary_table(past, length, rotary_frequencies_, model);
  const auto history = std::make_shared<RoutingHistory>(layout_, batch * length, router_dtype(config_),
                                                        !config_.router.detach, device());
  if (cache) cache->layers.resize(layers_.size());

  Output output;
  auto x = ops::embedding(tokens_BS, embedding_);
  if (states) states->push_back(x);
  for (size_t i = 0; i < layers_.size(); ++i) {
    auto* layer_cache = cache ? &cache->layers[i] : nullptr;
    auto out = recompute ? recomputed(layers_[i], x, rotary, history, position)
                         : layers_[i](x, rotary, *history, position, layer_cache);
    x = out.x;
    if (states) states->push_back(x);
    if (out.routing) output.routings.push_back(std::move(*out.routing));
  }
  if (cache) cache->length += length;
  output.hidden_TD = ops::rms_norm(x, norm_, model.rms_norm_eps).view({-1, model.hidden_size});
  return output;
}

at::Tensor Transformer::logits(const at::Tensor& hidden_TD, int64_t batch) const {
  const auto flat = ops::linear(hidden_TD, head_);
  return flat.to(flat.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)
      .view({batch, -1, head_.size(0)});
}

}  // namespace hero
