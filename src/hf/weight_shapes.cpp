#include "hf/weight_shapes.h"

#include "config/mtp_layers.h"
#include "model/counts.h"
#include "model/router_kind.h"

namespace hero {
namespace {

using Visitor = std::function<void(const std::string& name, const std::vector<int64_t>& shape)>;

void attention_weights(const ModelConfig& m, const std::string& prefix, const Visitor& visit) {
  const int64_t d = m.hidden_size, h = m.num_attention_heads;
  if (!m.is_deepseek()) {
    visit(prefix + "q_proj.weight", {h * m.head_dim, d});
    visit(prefix + "k_proj.weight", {m.num_key_value_heads * m.head_dim, d});
    visit(prefix + "v_proj.weight", {m.num_key_value_heads * m.head_dim, d});
    visit(prefix + "o_proj.weight", {d, h * m.head_dim});
    if (m.type().qk_norm == QkNorm::kNone) return;
    const bool per_head = m.type().qk_norm == QkNorm::kHead;
    visit(prefix + "q_norm.weight", {(per_head ? 1 : h) * m.head_dim});
    visit(prefix + "k_norm.weight", {(per_head ? 1 : m.num_key_value_heads) * m.head_dim});
    return;
  }
  const int64_t queries = h * (m.qk_nope_head_dim + m.qk_rope_head_dim);
  if (m.q_lora_rank > 0) {
    visit(prefix + "q_a_proj.weight", {m.q_lora_rank, d});
    visit(prefix + "q_a_layernorm.weight", {m.q_lora_rank});
    visit(prefix + "q_b_proj.weight", {queries, m.q_lora_rank});
  } else {
    visit(prefix + "q_proj.weight", {queries, d});
  }
  visit(prefix + "kv_a_proj_with_mqa.weight", {m.kv_lora_rank + m.qk_rope_head_dim, d});
  visit(prefix + "kv_a_layernorm.weight", {m.kv_lora_rank});
  visit(prefix + "kv_b_proj.weight", {h * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank});
  visit(prefix + "o_proj.weight", {d, h * m.v_head_dim});
}

void feed_forward_weights(int64_t d, int64_t width, const std::string& prefix, const ExpertNames& names,
                          const Visitor& visit) {
  const auto name = [&](std::string_view matrix) { return prefix + std::string(matrix) + ".weight"; };
  visit(name(names.gate), {width, d});
  visit(name(names.up), {width, d});
  visit(name(names.down), {d, width});
}

void moe_weights(const Config& config, int64_t l, int64_t visible, const std::string& prefix,
                 const Visitor& visit) {
  const ModelConfig& m = config.model;
  const int64_t d = m.hidden_size, f = m.moe_intermediate_size;
  for (const RouterWeight& weight : router_kind(config.router).weights(config, l, visible))
    visit(prefix + weight.name, weight.shape);
  if (m.is_deepseek()) visit(prefix + "gate.e_score_correction_bias", {m.num_experts});
  for (int64_t e = 0; e < m.num_experts; ++e)
    feed_forward_weights(d, f, prefix + "experts." + std::to_string(e) + ".", m.type().expert, visit);
  if (m.n_shared_experts > 0)
    feed_forward_weights(d, m.n_shared_experts * f, prefix + "shared_experts.", m.type().expert, visit);
}

// Of a multi-token prediction module, besides its decoder layer.
void mtp_weights(const ModelConfig& m, const std::string& prefix, const Visitor& visit) {
  for (const char* norm : {"enorm", "hnorm", "shared_head.norm"})
    visit(prefix + norm + ".weight", {m.hidden_size});
  visit(prefix + "eh_proj.weight", {m.hidden_size, 2 * m.hidden_size});
}

}  // namespace

void for_each_weight(const Config& config, const Visitor& visit) {
  const ModelConfig& m = config.model;
  visit("model.embed_tokens.weight", {m.vocab_size, m.hidden_size});
  visit("model.norm.weight", {m.hidden_size});
  if (!m.tie_word_embeddings) visit("lm_head.weight", {m.vocab_size, m.hidden_size});

  const auto numbers = moe_layer_numbers_with_modules(m), visible = visible_counts(config);
  for (int64_t i = 0; i < std::ssize(numbers); ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    if (i >= m.num_hidden_layers) mtp_weights(m, prefix, visit);
    visit(prefix + "input_layernorm.weight", {m.hidden_size});
    visit(prefix + "post_attention_layernorm.weight", {m.hidden_size});
    attention_weights(m, prefix + "self_attn.", visit);
    if (numbers[i] == 0) {
      feed_forward_weights(m.hidden_size, m.intermediate_size, prefix + "mlp.", m.type().expert, visit);
    } else {
      moe_weights(config, numbers[i], visible[i], prefix + std::string(m.type().moe_block) + ".", visit);
    }
  }
}

}  // namespace hero
