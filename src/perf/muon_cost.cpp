#include "perf/muon_cost.h"

#include <algorithm>

#include "config/mtp_layers.h"
#include "model/counts.h"
#include "model/router_kind.h"
#include "ops/newton_schulz.h"

namespace hero {
namespace {

// `count` matrices. An iteration multiplies [m, n] by [n, m], [m, m] by [m, m] and [m, m] by [m, n], m <= n.
MuonCost matrices(double count, int64_t rows, int64_t columns) {
  const double m = to_double(std::min(rows, columns)), n = to_double(std::max(rows, columns));
  return {count * m * n, count * to_double(ops::NewtonSchulz::kSteps) * (4 * m * m * n + 2 * m * m * m)};
}

// Gate, up and down projection of one feed-forward block.
MuonCost feed_forward_matrices(double count, int64_t hidden, int64_t intermediate) {
  return matrices(3 * count, intermediate, hidden);
}

MuonCost attention_matrices(const ModelConfig& m) {
  const int64_t d = m.hidden_size, h = m.num_attention_heads;
  MuonCost sum;
  if (!m.is_deepseek()) {
    sum += matrices(2, h * m.head_dim, d);
    sum += matrices(2, m.num_key_value_heads * m.head_dim, d);
    return sum;
  }
  const int64_t q = h * (m.qk_nope_head_dim + m.qk_rope_head_dim);
  sum += matrices(1, m.q_lora_rank ? m.q_lora_rank : q, d);
  if (m.q_lora_rank) sum += matrices(1, q, m.q_lora_rank);
  sum += matrices(1, m.kv_lora_rank + m.qk_rope_head_dim, d);
  sum += matrices(1, h * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank);
  sum += matrices(1, d, h * m.v_head_dim);
  return sum;
}

MuonCost router_matrices(const Config& config, int64_t l, int64_t visible) {
  const RouterKind& kind = router_kind(config.router);
  MuonCost sum;
  for (const RouterWeight& weight : kind.weights(config, l, visible)) {
    if (weight.shape.size() != 2) continue;
    const int64_t hidden = weight.shape[1] - weight.history_columns;
    sum += matrices(1, weight.shape[0], hidden);
    if (weight.history_columns > 0) sum += matrices(1, weight.shape[0], weight.history_columns);
  }
  return sum;
}

}  // namespace

MuonCost& MuonCost::operator+=(const MuonCost& other) {
  weights += other.weights;
  flops += other.flops;
  return *this;
}

MuonCost muon_layer_cost(const Config& config, int64_t i, int64_t visible) {
  const ModelConfig& m = config.model;
  if (config.optim.kind != OptimKind::kMuon) return {};
  const int64_t l = moe_layer_numbers_with_modules(m)[i];
  MuonCost sum;
  if (l > 0 && config.optim.muon_router) sum += router_matrices(config, l, visible);
  if (!config.train.trains_all()) return sum;
  sum += attention_matrices(m);
  if (l == 0) {
    sum += feed_forward_matrices(1, m.hidden_size, m.intermediate_size);
  } else if (m.n_shared_experts > 0) {
    sum += feed_forward_matrices(1, m.hidden_size, m.n_shared_experts * m.moe_intermediate_size);
  }
  if (i >= m.num_hidden_layers) sum += matrices(1, m.hidden_size, 2 * m.hidden_size);  // eh_proj
  return sum;
}

MuonCost muon_expert_cost(const Config& config, int64_t i) {
  const ModelConfig& m = config.model;
  if (config.optim.kind != OptimKind::kMuon || !config.train.trains_all() ||
      moe_layer_numbers_with_modules(m)[i] == 0)
    return {};
  return feed_forward_matrices(to_double(m.num_experts), m.hidden_size, m.moe_intermediate_size);
}

MuonCost muon_model_cost(const Config& config) {
  const auto visible = visible_counts(config);
  MuonCost sum;
  for (int64_t i = 0; i < decoder_layers_with_modules(config.model); ++i) {
    sum += muon_layer_cost(config, i, visible[i]);
    sum += muon_expert_cost(config, i);
  }
  return sum;
}

}  // namespace hero
