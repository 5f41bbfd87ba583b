#include "model/transformer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "model/recompute.h"
#include "model/router_kind.h"
#include "ops/ops.h"

namespace hero {

DecoderLayer::DecoderLayer(Parameters& parameters, int64_t i, int64_t l, const Config& config,
                           const HistoryLayout& layout, const ModelShard& shard)
    : index_(i), eps_(config.model.rms_norm_eps), document_mask_(config.train.document_mask) {
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
  // first.sum is x; using it here lets add_rms_norm add the residual's gradient in its own backward pass.
  const auto first = ops::add_rms_norm(x, {}, input_norm_, eps_);
  const auto& max_logits = context.max_attention_logits;
  const AttentionOptions options{.starts_BS = document_mask_ ? context.starts_BS : at::Tensor(),
                                 .max_logit = max_logits.defined() ? max_logits[index_] : at::Tensor()};
  const auto* grouped = std::get_if<GroupedQueryAttention>(&attention_);
  const auto attended = grouped
                            ? (*grouped)(first.normed, rotary, extension, options)
                            : std::get<LatentAttention>(attention_)(first.normed, rotary, extension, options);
  const auto second = ops::add_rms_norm(first.sum, attended, post_norm_, eps_);
  const auto rows = [&](const at::Tensor& t) { return t.view({-1, x.size(2)}); };
  if (const auto* dense = std::get_if<FeedForward>(&mlp_))
    return {second.sum + (*dense)(rows(second.normed)).view(x.sizes()), std::nullopt};
  auto [y_TD, routing] = std::get<Moe>(mlp_)(rows(second.normed), history, context, rows(second.sum));
  return {y_TD.view(x.sizes()), std::move(routing)};
}

Transformer::Transformer(const Config& config, at::Device device)
    : Transformer(config, device, whole_model(config)) {}

Transformer::Transformer(const Config& config, at::Device device, ModelShard shard)
    : config_(config),
      shard_(std::move(shard)),
      layout_(moe_layers(config.model), config.model.num_experts, config.router),
      parameters_(train_dtype(config), static_cast<uint64_t>(config.train.seed), device),
      rotary_frequencies_(rotary_frequencies(config.model, train_dtype(config)).to(device)) {
  const auto& model = config_.model;
  const auto init = normal_init(model.initializer_range);
  const auto add_vocab_weight = [&](const char* name) {
    return parameters_.add(name, {model.vocab_size, model.hidden_size}, init, /*decay=*/true);
  };
  const auto numbers = moe_layer_numbers(model);
  for (const ModelChunk& chunk : shard_.chunks) {
    if (chunk.is_first) embedding_ = add_vocab_weight("model.embed_tokens.weight");
    for (int64_t i = chunk.first; i < chunk.last; ++i)
      layers_.emplace_back(parameters_, i, numbers[i], config_, layout_, shard_);
    if (!chunk.is_last) continue;
    norm_ = parameters_.add("model.norm.weight", {model.hidden_size}, constant_init(1), false);
    head_ = model.tie_word_embeddings ? embedding_ : add_vocab_weight("lm_head.weight");
  }
  if (config_.train.trainable == Trainable::kRouters) {
    parameters_.freeze_unless([&](const std::string& name) { return is_router_weight(config_, name); });
  }
}

Transformer::Output Transformer::forward(const at::Tensor& tokens_BS, const ForwardContext& context,
                                         bool recompute, std::vector<at::Tensor>* hidden_states) const {
  const auto history = new_history(shard_.chunks.front(), tokens_BS.numel());
  return run_chunk(0, tokens_BS, history, context, recompute, {}, hidden_states);
}

std::shared_ptr<RoutingHistory> Transformer::new_history(const ModelChunk& chunk, int64_t tokens) const {
  return std::make_shared<RoutingHistory>(layout_, chunk.first_moe, chunk.last_moe, tokens,
                                          router_dtype(config_), !config_.router.detach, device());
}

at::Tensor Transformer::positions(const at::Tensor& input, const ForwardContext& context) const {
  const auto all = at::arange(input.size(1), at::TensorOptions(device()).dtype(at::kLong));
  if (!config_.train.document_positions || !context.starts_BS.defined()) return all;
  return (all - context.starts_BS).flatten();
}

Transformer::Output Transformer::run_chunk(size_t local_chunk, const at::Tensor& input,
                                           const std::shared_ptr<RoutingHistory>& history,
                                           const ForwardContext& context, bool recompute,
                                           const std::function<void(int64_t l)>& on_routed,
                                           std::vector<at::Tensor>* hidden_states) const {
  size_t next = 0;  // index into layers_
  for (size_t c = 0; c < local_chunk; ++c)
    next += static_cast<size_t>(shard_.chunks[c].last - shard_.chunks[c].first);
  const ModelChunk& chunk = shard_.chunks[local_chunk];
  const auto rotary = rotary_table(positions(input, context), rotary_frequencies_, config_.model);
  Output output;
  auto x = chunk.is_first ? ops::embedding(input, embedding_) : input;
  if (hidden_states) hidden_states->push_back(x);
  for (int64_t i = chunk.first; i < chunk.last; ++i) {
    const auto& layer = layers_[next++];
    auto out = recompute ? recompute_layer(layer, x, rotary, history, context)
                         : layer(x, rotary, *history, context, nullptr);
    x = out.x;
    if (hidden_states) hidden_states->push_back(x);
    if (!out.routing) continue;
    if (on_routed) on_routed(out.routing->layer);
    output.routings.push_back(std::move(*out.routing));
  }
  const auto& m = config_.model;
  output.hidden_TD = chunk.is_last ? ops::rms_norm(x, norm_, m.rms_norm_eps).view({-1, m.hidden_size}) : x;
  return output;
}

at::Tensor Transformer::extend(const at::Tensor& tokens_T, const std::vector<KeyValueCache*>& caches,
                               const std::vector<int64_t>& counts) const {
  at::NoGradGuard no_grad;
  const int64_t tokens = tokens_T.size(0);
  auto positions = at::empty({tokens}, at::kLong);
  auto* next = positions.data_ptr<int64_t>();
  Extension extension{.caches = {},
                      .counts = counts,
                      .lengths = {},
                      .prefill = std::ranges::all_of(caches, [](const auto* c) { return c->length == 0; })};
  for (size_t i = 0; i < caches.size(); ++i) {
    caches[i]->layers.resize(layers_.size());
    for (int64_t n = 0; n < counts[i]; ++n) *next++ = caches[i]->length + n;
    extension.lengths.push_back(caches[i]->length + counts[i]);
  }
  const auto rotary = rotary_table(positions.to(device()), rotary_frequencies_, config_.model);
  RoutingHistory history(layout_, tokens, router_dtype(config_), !config_.router.detach, device());
  auto x = ops::embedding(tokens_T.unsqueeze(0), embedding_);
  for (size_t i = 0; i < layers_.size(); ++i) {
    extension.caches.clear();
    for (auto* cache : caches) extension.caches.push_back(&cache->layers[i]);
    x = layers_[i](x, rotary, history, {}, &extension).x;
  }
  for (size_t i = 0; i < caches.size(); ++i) caches[i]->length += counts[i];
  return ops::rms_norm(x, norm_, config_.model.rms_norm_eps)[0];
}

at::Tensor Transformer::logits(const at::Tensor& hidden_TD, int64_t batch) const {
  const auto flat = ops::linear(hidden_TD, head_);
  return flat.to(flat.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)
      .view({batch, -1, head_.size(0)});
}

}  // namespace hero
