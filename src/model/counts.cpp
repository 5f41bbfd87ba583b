#include "model/counts.h"

#include <algorithm>

namespace hero {
namespace {

double number(int64_t n) { return static_cast<double>(n); }

// `active` weights that each multiply the token once.
Part matrix(const std::string& name, double parameters, double active, bool input_gradient = true) {
  return {.name = name,
          .parameters = parameters,
          .active = active,
          .forward = 2 * active,
          .backward = (input_gradient ? 4 : 2) * active,
          .paper = 6 * active};
}

Part attention_weights(const ModelConfig& m) {
  const double d = number(m.hidden_size), heads = number(m.num_attention_heads);
  double weights = 0;
  if (m.model_type == "deepseek_v3") {
    const double qk = number(m.qk_nope_head_dim + m.qk_rope_head_dim), v = number(m.v_head_dim),
                 q_rank = number(m.q_lora_rank), kv_rank = number(m.kv_lora_rank);
    weights = d * heads * v + d * (kv_rank + number(m.qk_rope_head_dim));
    weights += kv_rank * heads * (number(m.qk_nope_head_dim) + v);
    weights += q_rank > 0 ? q_rank * (d + heads * qk) : d * heads * qk;
  } else {
    weights = d * 2 * (heads + number(m.num_key_value_heads)) * number(m.head_dim);
  }
  return matrix("attention", weights, weights);
}

// A query meets (S + 1) / 2 keys on average: scores and values.
Part attention_scores(const Config& config) {
  const ModelConfig& m = config.model;
  const bool latent = m.model_type == "deepseek_v3";
  const double widths =
      latent ? number(m.qk_nope_head_dim + m.qk_rope_head_dim + m.v_head_dim) : 2 * number(m.head_dim);
  const double forward = number(m.num_attention_heads) * widths * number(config.train.sequence + 1);
  return {.name = "attention scores", .forward = forward, .backward = 2 * forward};
}

// Gains are no matrix product; their arithmetic is left out.
Part gains(double count) { return {.name = "norms", .parameters = count, .active = count}; }

double layer_gains(const ModelConfig& m) {
  const double own =
      m.model_type == "deepseek_v3" ? number(m.q_lora_rank + m.kv_lora_rank) : 2 * number(m.head_dim);
  return 2 * number(m.hidden_size) + own;
}

void add(std::vector<Part>& sums, const Part& part) {
  const auto found =
      std::find_if(sums.begin(), sums.end(), [&](const Part& sum) { return sum.name == part.name; });
  if (found == sums.end()) {
    sums.push_back(part);
  } else {
    *found += part;
  }
}

}  // namespace

Part& Part::operator+=(const Part& other) {
  parameters += other.parameters;
  active += other.active;
  forward += other.forward;
  backward += other.backward;
  paper += other.paper;
  return *this;
}

std::vector<Part> layer_parts(const Config& config, int64_t i, int64_t visible) {
  const ModelConfig& m = config.model;
  const double d = number(m.hidden_size), e = number(m.num_experts);
  std::vector<Part> parts = {attention_weights(m), attention_scores(config), gains(layer_gains(m))};
  if (moe_numbers(m)[i] == 0) {
    const double weights = 3 * d * number(m.intermediate_size);
    parts.push_back(matrix("dense layers", weights, weights));
    return parts;
  }
  const double expert = 3 * d * number(m.moe_intermediate_size), shared = number(m.n_shared_experts) * expert;
  parts.push_back(matrix(kRouterPart, d * e, d * e));
  const double history = number(visible) * e * e;
  parts.push_back(matrix(kHistoryPart, history, history, /*input_gradient=*/!config.router.detach));
  parts.push_back(matrix("experts", e * expert, number(m.num_experts_per_tok) * expert));
  parts.push_back(matrix("shared experts", shared, shared));
  return parts;
}

std::vector<int64_t> visible_counts(const Config& config) {
  const auto numbers = moe_numbers(config.model);
  std::vector<int64_t> counts(numbers.size(), 0);
  const int64_t layers = moe_layers(config.model);
  if (config.router.kind != "hero" || layers == 0) return counts;
  const auto stage_of = stage_of_layers(layers, config.router);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] > 0)
      counts[i] = static_cast<int64_t>(visible_layers(numbers[i], stage_of, config.router).size());
  }
  return counts;
}

std::vector<Part> model_parts(const Config& config) {
  const ModelConfig& m = config.model;
  const double table = number(m.vocab_size) * number(m.hidden_size);
  std::vector<Part> sums = {{.name = "embedding", .parameters = table}};
  const auto visible = visible_counts(config);
  for (int64_t i = 0; i < m.num_hidden_layers; ++i) {
    for (const Part& part : layer_parts(config, i, visible[i])) add(sums, part);
  }
  add(sums, gains(number(m.hidden_size)));
  add(sums, matrix("output", m.tie_word_embeddings ? 0 : table, table));
  return sums;
}

double training_flops_per_token(const Config& config) {
  double sum = 0;
  for (const Part& part : model_parts(config)) sum += part.forward + part.backward;
  return sum;
}

}  // namespace hero
