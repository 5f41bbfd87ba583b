#include "model/flops.h"

#include "model/history.h"

namespace hero {

double training_flops_per_token(const Config& config) {
  const auto& m = config.model;
  const auto d = static_cast<double>(m.hidden_size), heads = static_cast<double>(m.num_attention_heads);
  const bool latent = m.model_type == "deepseek_v3";
  const auto qk = static_cast<double>(latent ? m.qk_nope_head_dim + m.qk_rope_head_dim : m.head_dim);
  const auto v = static_cast<double>(latent ? m.v_head_dim : m.head_dim);
  double attention = d * heads * v;  // output projection
  if (latent) {
    const auto q_rank = static_cast<double>(m.q_lora_rank), kv_rank = static_cast<double>(m.kv_lora_rank);
    attention += q_rank > 0 ? q_rank * (d + heads * qk) : d * heads * qk;
    attention += d * (kv_rank + static_cast<double>(m.qk_rope_head_dim));
    attention += kv_rank * heads * static_cast<double>(m.qk_nope_head_dim + m.v_head_dim);
  } else {
    attention += d * (heads + 2.0 * static_cast<double>(m.num_key_value_heads)) * qk;
  }
  const auto f = static_cast<double>(m.moe_intermediate_size), e = static_cast<double>(m.num_experts);
  const double moe = 3.0 * d * f * static_cast<double>(m.num_experts_per_tok + m.n_shared_experts) + d * e;
  const double dense = 3.0 * d * static_cast<double>(m.intermediate_size);
  const int64_t moe_count = moe_layers(m);
  const double weights =
      static_cast<double>(m.num_hidden_layers) * attention + static_cast<double>(moe_count) * moe +
      static_cast<double>(m.num_hidden_layers - moe_count) * dense + d * static_cast<double>(m.vocab_size);
  const HistoryLayout layout(moe_count, m.num_experts, config.router);
  double history = 0;
  for (int64_t l = 1; l <= moe_count; ++l) history += static_cast<double>(layout.visible(l).size()) * e * e;
  // Each query meets half of the sequence on average; scores and values, 2 operations, thrice with the
  // backward pass.
  const double scores =
      3.0 * static_cast<double>(m.num_hidden_layers * config.train.sequence) * heads * (qk + v);
  return 6.0 * weights + 4.0 * history + scores;
}

}  // namespace hero
