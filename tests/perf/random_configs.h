#pragma once
// Random models for the predictions of `hero cost`.
#include <algorithm>

#include "config/config.h"
#include "config/fields.h"
#include "config/router_kinds.h"
#include "ops/random_cases.h"

namespace hero::perf_test {

/// The changed options as flags, which a failure prints.
inline std::string flags_of(const Config& config) {
  Config changed = config, defaults;
  auto given = fields(changed);
  const auto unchanged = fields(defaults);
  std::string flags;
  for (size_t i = 0; i < given.size(); ++i) {
    const FieldValue value = read(given[i]);
    if (value != read(unchanged[i])) flags += " --" + given[i].key + "=" + literal(value);
  }
  return flags;
}

inline void draw_grouped_query(test::Draw& d, ModelConfig& m) {
  m.num_key_value_heads = d.count(3);
  m.num_attention_heads = m.num_key_value_heads * d.count(3);
  m.head_dim = 16 * d.between(1, 3);
  if (m.type().qk_norm == QkNorm::kProjection) m.hidden_size = m.num_attention_heads * m.head_dim;
  if (!m.type().has_dense_layers || d.chance(0.5)) return;
  m.decoder_sparse_step = d.between(1, std::min<int64_t>(2, m.num_hidden_layers));
}

inline void draw_latent(test::Draw& d, ModelConfig& m) {
  m.num_attention_heads = d.between(1, 5);
  m.q_lora_rank = d.chance(0.5) ? 0 : 16 * d.between(1, 4);
  m.kv_lora_rank = 16 * d.between(1, 4);
  m.qk_nope_head_dim = 16 * d.between(1, 3);
  m.qk_rope_head_dim = 16 * d.between(1, 2);
  m.v_head_dim = 16 * d.between(1, 4);
  m.first_k_dense_replace = d.between(0, m.num_hidden_layers - 1);
  m.n_shared_experts = d.between(0, 2);
  m.scoring_func = d.one_of({ScoringFunc::kSoftmax, ScoringFunc::kSigmoid});
  m.num_nextn_predict_layers = d.chance(0.6) ? 0 : d.between(1, 2);
}

/// Widths are multiples of 16: the packed bf16 kernels run.
inline Config random_config(test::Draw& d) {
  Config c;
  ModelConfig& m = c.model;
  m.model_type =
      d.one_of({ModelType::kQwen3Moe, ModelType::kDeepseekV3, ModelType::kOlmoe, ModelType::kMixtral});
  m.vocab_size = 16 * d.between(2, 40);
  m.hidden_size = 16 * d.between(2, 10);
  m.num_hidden_layers = d.between(1, 5);
  m.intermediate_size = 16 * d.between(1, 12);
  m.moe_intermediate_size = 16 * d.between(1, 8);
  m.num_experts = d.between(2, 40);
  m.num_experts_per_tok = d.between(1, std::min<int64_t>(m.num_experts, 6));
  m.norm_topk_prob = m.type().always_norm_topk_prob || d.chance(0.5);
  m.tie_word_embeddings = d.chance(0.3);
  if (m.is_deepseek()) {
    draw_latent(d, m);
  } else {
    draw_grouped_query(d, m);
  }
  RouterConfig& r = c.router;
  r.kind = d.one_of({"baseline", "hero", "hero", "rmoe"});
  r.stages = d.between(1, std::min<int64_t>(2, moe_layers(m)));
  if (r.kind == "hero") {
    r.window = d.between(0, 3);
    r.scale = d.chance(0.7);
    r.history = d.one_of({HistoryScope::kStage, HistoryScope::kGlobal});
  } else if (r.kind == "rmoe") {
    r.state_size = 16 * d.between(1, 6);
  }
  r.dtype = d.one_of({RouterDtype::kTrain, RouterDtype::kFp32});
  r.balance = d.one_of({BalanceScope::kNone, BalanceScope::kMicroBatch, BalanceScope::kSequence});
  r.z_loss = d.chance(0.3) ? 1e-3 : 0;
  r.coupling_loss = d.chance(0.3) && moe_layers(m) + m.num_nextn_predict_layers > 1 ? 1e-3 : 0;
  TrainConfig& t = c.train;
  t.sequence = 16 * d.between(1, 8);
  t.micro_batch = d.between(1, 3);
  t.global_batch = t.micro_batch * d.between(1, 2);
  t.trainable = d.chance(0.4) ? Trainable::kRouters : Trainable::kAll;
  t.recompute = d.chance(0.3);
  r.detach = r.kind == "baseline" || t.recompute || d.chance(0.6);
  check(c);
  return c;
}

}  // namespace hero::perf_test
