#include "perf/memory.h"

#include <algorithm>

#include "config/mtp_layers.h"
#include "io/error.h"
#include "model/counts.h"
#include "model/router_kind.h"

namespace hero {
namespace {

constexpr double kIndex = 8;  // bytes of an expert id or row index

// Fused attention reads strided operands; PyTorch's kernel needs equal head counts and widths.
bool fused_attention(const Config& config, int64_t qk, int64_t v) {
  return config.train.dtype == Dtype::kBf16 && qk % 16 == 0 && v % 16 == 0;
}

// Bytes per token, from the normalized input to the input of the output projection.
double grouped_attention(const Config& config, const ElementSizes& w) {
  const ModelConfig& m = config.model;
  const double h = to_double(m.num_attention_heads), g = to_double(m.num_key_value_heads),
               p = to_double(m.head_dim);
  const QkNorm norm = m.type().qk_norm;
  const bool fused = fused_attention(config, m.head_dim, m.head_dim);
  // The joint projection is the input of the heads' norms, or the values are a view of it.
  const double values = norm != QkNorm::kNone || fused || h == g ? (h + 2 * g) * p : 0;
  const double norms = norm == QkNorm::kHead ? h + g : norm == QkNorm::kProjection ? 2 : 0, rstds = norms + h;
  if (fused) return (values + 2 * h * p + g * p) * w.operand + rstds * w.accum;
  const double repeated = h == g ? 0 : h * p;  // values
  return (values + 3 * h * p + repeated) * w.operand + rstds * w.accum;
}

double latent_attention(const Config& config, const ElementSizes& w) {
  const ModelConfig& m = config.model;
  const double h = to_double(m.num_attention_heads), nope = to_double(m.qk_nope_head_dim),
               v = to_double(m.v_head_dim), qk = nope + to_double(m.qk_rope_head_dim),
               q_rank = to_double(m.q_lora_rank), kv_rank = to_double(m.kv_lora_rank), head = std::max(qk, v);
  const double down = (q_rank > 0 ? q_rank : h * qk) + kv_rank + to_double(m.qk_rope_head_dim);
  const double latents = config.train.trains_all() ? kv_rank + q_rank : 0;  // normalized
  const double rstds = (q_rank > 0 ? 2 : 1) + h;                            // and the attention's logsumexp
  if (fused_attention(config, m.qk_nope_head_dim + m.qk_rope_head_dim, m.v_head_dim))
    return (down + latents + 2 * h * qk + h * (nope + v) + h * v) * w.operand + rstds * w.accum;
  const double values = v < qk ? h * head : h * (nope + v);
  // The output projection's input is a copy unless the heads are adjacent already.
  const bool adjacent = v == qk || (v > qk && h == 1);
  const double joined = adjacent || !config.train.trains_all() ? 0 : h * v;
  return (down + latents + 3 * h * head + values + joined) * w.operand + rstds * w.accum;
}

double feed_forward(const Config& config, double width, const ElementSizes& w) {
  return (config.train.trains_all() ? 3 : 2) * width * w.operand;
}

// What losses and metrics need of one MoE layer's router and expert selection.
double routing_outputs(const Config& config, const ElementSizes& w) {
  const ModelConfig& m = config.model;
  const RouterConfig& r = config.router;
  const double e = to_double(m.num_experts), k = to_double(m.num_experts_per_tok);
  double bytes = (2 * e + 5) * w.accum + k * (kIndex + w.accum);  // logits, probabilities, statistics, choice
  if (m.has_sigmoid_scores() && r.balance != BalanceScope::kNone && r.balance_loss > 0)
    bytes += (e + 1) * w.accum;
  if (r.z_loss > 0) bytes += w.accum;
  if (r.coupling_loss > 0) bytes += k * kIndex + w.accum;
  return bytes;
}

// The same and what the layer's backward pass needs besides, except the router's input.
double routing(const Config& config, const ElementSizes& w) {
  const ModelConfig& m = config.model;
  double bytes = routing_outputs(config, w);
  if (m.has_sigmoid_scores()) bytes += to_double(m.num_experts) * w.accum;
  if (config.router.capacity_factor > 0) bytes += to_double(m.num_experts_per_tok) * (kIndex + 1 + w.accum);
  return bytes;
}

// `reached`: the backward pass continues to the experts' inputs.
double experts(const Config& config, bool reached, const ElementSizes& w) {
  const ModelConfig& m = config.model;
  const double rows = to_double(m.num_experts_per_tok), d = to_double(m.hidden_size);
  double row = d * w.operand + 2 * kIndex;  // outputs
  if (config.train.trains_all()) row += d * w.operand;
  if (!reached) return rows * row;
  row += 2 * to_double(m.moe_intermediate_size) * w.operand;
  return rows * row + feed_forward(config, to_double(m.n_shared_experts * m.moe_intermediate_size), w);
}

}  // namespace

ElementSizes::ElementSizes(const Config& config)
    : operand(config.train.dtype == Dtype::kBf16   ? 2
              : config.train.dtype == Dtype::kFp64 ? 8
                                                   : 4),
      accum(config.train.dtype == Dtype::kFp64 ? 8 : 4),
      router(config.router.dtype == RouterDtype::kFp32 && config.train.dtype == Dtype::kBf16 ? 4 : operand) {}

double layer_activation_bytes(const Config& config, int64_t i, double tokens) {
  const ModelConfig& m = config.model;
  const ElementSizes w(config);
  const double d = to_double(m.hidden_size);
  const bool reached = reaches_input(config, i);
  double bytes = 0, router = 0;
  if (reached) {
    bytes += 2 * d * w.operand + 2 * w.accum;  // inputs of two norms
    bytes += m.is_deepseek() ? latent_attention(config, w) : grouped_attention(config, w);
  }
  if (config.train.trains_all()) bytes += d * w.operand;  // output of the first norm
  if (const int64_t l = moe_layer_numbers_with_modules(m)[i]; l > 0) {
    const RouterKind& kind = router_kind(config.router);
    // The router's input is the second norm's output, or a copy of it.
    const double input = kind.widens_operands(config) ? w.accum : w.router;
    if (input != w.operand) bytes += d * input;
    if (input == w.operand || (config.train.trains_all() && m.n_shared_experts > 0)) bytes += d * w.operand;
    bytes += routing(config, w) + experts(config, reached, w);
    const auto visible = kind.visible(l, stage_of_layers_with_modules(m, config.router), config.router);
    router = kind.saved_values(config, static_cast<int64_t>(visible.size()), reached, tokens) * w.accum;
  } else {
    if (reached) bytes += feed_forward(config, to_double(m.intermediate_size), w);
    if (config.train.trains_all()) bytes += d * w.operand;  // output of the second norm
  }
  return tokens * bytes + router;
}

double routing_bytes(const Config& config, double tokens) {
  return tokens * routing_outputs(config, ElementSizes(config));
}

double recomputed_layer_bytes(const Config& config, int64_t i, double tokens) {
  const bool moe = moe_layer_numbers_with_modules(config.model)[i] > 0;
  if (!moe && !reaches_input(config, i)) return 0;
  return tokens * to_double(config.model.hidden_size) * ElementSizes(config).operand +
         (moe ? routing_bytes(config, tokens) : 0);
}

double saved_layer_bytes(const Config& config, int64_t i, double tokens) {
  return config.train.recompute ? recomputed_layer_bytes(config, i, tokens)
                                : layer_activation_bytes(config, i, tokens);
}

double head_activation_bytes(const Config& config, double tokens) {
  const ModelConfig& m = config.model;
  const ElementSizes w(config);
  const double d = to_double(m.hidden_size);
  return tokens * (3 * d * w.operand + w.accum) + head_gradient_bytes(config);
}

double head_gradient_bytes(const Config& config) {
  const ModelConfig& m = config.model;
  return config.train.trains_all() ? to_double(m.vocab_size * m.hidden_size) * ElementSizes(config).accum : 0;
}

double mtp_activation_bytes(const Config& config, double tokens) {
  const ElementSizes w(config);
  const double d = to_double(config.model.hidden_size);
  // The shifted embeddings and the joined normalized inputs; the head counts the last norm.
  const double inputs = config.train.trains_all() ? 3 * d * w.operand + 2 * w.accum : w.accum;
  return tokens * inputs + head_activation_bytes(config, tokens);
}

std::vector<int64_t> layout_bounds(const Config& config, const Layout& layout) {
  const int64_t chunks = layout.pipeline * layout.chunks;
  return chunks == 1 ? std::vector<int64_t>{0, config.model.num_hidden_layers} : chunk_bounds(config, chunks);
}

std::vector<int64_t> pipeline_stages(const Config& config, const Layout& layout) {
  const auto bounds = layout_bounds(config, layout);
  std::vector<int64_t> stages;
  for (size_t chunk = 0; chunk + 1 < bounds.size(); ++chunk)
    stages.resize(bounds[chunk + 1], static_cast<int64_t>(chunk) % layout.pipeline);
  stages.resize(decoder_layers_with_modules(config.model), layout.pipeline - 1);
  return stages;
}

void check_vocabulary(const Config& config) {
  if (config.model.vocab_size > 0) return;
  throw UserError(
      "model.vocab_size: found 0, expected the vocabulary size, for example --model.vocab_size=8192");
}

double total(const std::vector<MemoryItem>& items) {
  double sum = 0;
  for (const MemoryItem& item : items) sum += item.bytes;
  return sum;
}

}  // namespace hero
