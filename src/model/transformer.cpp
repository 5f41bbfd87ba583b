#include "model/transformer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "model/recompute.h"
#include "model/router_kind.h"
#include "ops/ops.h"

namespace hero {

Transformer::Transformer(const Config& config, at::Device device)
    : Transformer(config, device, whole_model(config)) {}

Transformer::Transformer(const Config& config, at::Device device, ModelShard shard, InitialValues initial)
    : config_(config),
      shard_(std::move(shard)),
      layout_(moe_layers(config.model), config.model.num_experts, config.router,
              config.model.num_nextn_predict_layers),
      parameters_(train_dtype(config), static_cast<uint64_t>(config.train.seed), device, initial),
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
    for (int64_t k = 1; k <= model.num_nextn_predict_layers; ++k)
      modules_.emplace_back(parameters_, k, config_, layout_, shard_);
  }
  if (!config_.train.trains_all()) {
    parameters_.freeze_unless([&](const std::string& name) { return is_router_weight(config_, name); });
  }
}

Transformer::Output Transformer::forward(const at::Tensor& tokens_BS, const ForwardContext& context,
                                         bool recompute, std::vector<at::Tensor>* hidden_states) const {
  const auto history = new_history(shard_.chunks.front(), tokens_BS.numel());
  return run_chunk(0, {tokens_BS}, history, context, recompute, {}, hidden_states);
}

at::Tensor Transformer::forward_from(size_t first, at::Tensor x, RoutingHistory& history,
                                     const ForwardContext& context) const {
  const auto rotary = rotary_table(positions(x, context), rotary_frequencies_, config_.model);
  for (size_t i = first; i < layers_.size(); ++i) x = layers_[i](x, rotary, history, context, nullptr).x;
  return ops::rms_norm(x, norm_, config_.model.rms_norm_eps).view({-1, config_.model.hidden_size});
}

std::shared_ptr<RoutingHistory> Transformer::new_history(const ModelChunk& chunk, int64_t tokens) const {
  // Without a visible layer router.detach has no effect: the kernels run, not the operators with gradient.
  const bool differentiable = !config_.router.detach && layout_.has_visible_layers();
  return std::make_shared<RoutingHistory>(layout_, chunk.first_moe, chunk.last_moe, tokens,
                                          router_dtype(config_), differentiable, device());
}

at::Tensor Transformer::positions(const at::Tensor& input, const ForwardContext& context) const {
  auto all = at::arange(input.size(1), at::TensorOptions(device()).dtype(at::kLong));
  if (!config_.train.document_positions || !context.starts_BS.defined()) return all;
  return (all - context.starts_BS).flatten();
}

Transformer::Output Transformer::run_chunk(size_t local_chunk, const ChunkInput& input,
                                           const std::shared_ptr<RoutingHistory>& history,
                                           const ForwardContext& context, bool recompute,
                                           const std::function<void(int64_t l)>& on_routed,
                                           std::vector<at::Tensor>* hidden_states) const {
  size_t next = 0;  // index into layers_
  for (size_t c = 0; c < local_chunk; ++c)
    next += static_cast<size_t>(shard_.chunks[c].last - shard_.chunks[c].first);
  const ModelChunk& chunk = shard_.chunks[local_chunk];
  const auto rotary = rotary_table(positions(input.x, context), rotary_frequencies_, config_.model);
  Output output;
  auto x = chunk.is_first ? ops::embedding(input.x, embedding_) : input.x;
  const auto embedded = chunk.is_first ? x : input.embedded;
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
  if (!runs_modules(context)) return output;
  if (chunk.is_last) {
    run_modules(embedded, rotary, history, context, recompute, output);
  } else if (chunk.is_first) {
    output.embedded = embedded;
  }
  return output;
}

void Transformer::run_modules(const at::Tensor& embedded, const RotaryTable& rotary,
                              const std::shared_ptr<RoutingHistory>& history, const ForwardContext& context,
                              bool recompute, Output& output) const {
  auto hidden = output.hidden_TD.view(embedded.sizes());
  for (const MtpModule& module : modules_) {
    auto out = module(embedded, hidden, rotary, history, context, recompute);
    hidden = out.hidden;
    output.modules_TD.push_back(hidden.view({-1, config_.model.hidden_size}));
    output.routings.push_back(std::move(out.routing));
  }
}

std::vector<const Moe*> Transformer::moe_blocks() const {
  std::vector<const Moe*> blocks;
  for (const DecoderLayer& layer : layers_) {
    if (layer.moe()) blocks.push_back(layer.moe());
  }
  for (const MtpModule& module : modules_) blocks.push_back(module.layer().moe());
  return blocks;
}

at::Tensor Transformer::extend(const at::Tensor& tokens_T, const std::vector<KeyValueCache*>& caches,
                               const std::vector<int64_t>& counts, ExtensionBuffers& buffers) const {
  at::NoGradGuard no_grad;
  const int64_t tokens = tokens_T.size(0);
  std::vector<int64_t> positions;
  Extension extension{.caches = {},
                      .counts = counts,
                      .lengths = {},
                      .prefill = std::ranges::all_of(caches, [](const auto* c) { return c->length == 0; })};
  for (size_t i = 0; i < caches.size(); ++i) {
    caches[i]->layers.resize(layers_.size());
    for (int64_t n = 0; n < counts[i]; ++n) positions.push_back(caches[i]->length + n);
    extension.lengths.push_back(caches[i]->length + counts[i]);
  }
  const auto rotary = buffers.rotary.rows(positions, rotary_frequencies_, config_.model);
  auto& history = buffers.history;
  if (!history || history->tokens() != tokens) history = new_history(shard_.chunks.front(), tokens);
  auto x = ops::embedding(tokens_T.unsqueeze(0), embedding_);
  for (size_t i = 0; i < layers_.size(); ++i) {
    extension.caches.clear();
    for (auto* cache : caches) extension.caches.push_back(&cache->layers[i]);
    x = layers_[i](x, rotary, *history, {}, &extension).x;
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
