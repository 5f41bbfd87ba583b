#include "model/counts.h"

#include <algorithm>
#include <stdexcept>

#include "config/mtp_layers.h"
#include "model/router_kind.h"

namespace hero {
namespace {

CostItem attention_projection_cost(const ModelConfig& m) {
  const double d = to_double(m.hidden_size), heads = to_double(m.num_attention_heads);
  double weights = 0;
  if (m.is_deepseek()) {
    const double qk = to_double(m.qk_nope_head_dim + m.qk_rope_head_dim), v = to_double(m.v_head_dim),
                 q_rank = to_double(m.q_lora_rank), kv_rank = to_double(m.kv_lora_rank);
    weights = d * heads * v + d * (kv_rank + to_double(m.qk_rope_head_dim));
    weights += kv_rank * heads * (to_double(m.qk_nope_head_dim) + v);
    weights += q_rank > 0 ? q_rank * (d + heads * qk) : d * heads * qk;
  } else {
    weights = d * 2 * (heads + to_double(m.num_key_value_heads)) * to_double(m.head_dim);
  }
  return gemm_cost("attention", weights, weights);
}

// A query attends to (S + 1) / 2 keys on average.
CostItem attention_score_cost(const Config& config) {
  const ModelConfig& m = config.model;
  const bool latent = m.is_deepseek();
  const double widths =
      latent ? to_double(m.qk_nope_head_dim + m.qk_rope_head_dim + m.v_head_dim) : 2 * to_double(m.head_dim);
  const double forward = to_double(m.num_attention_heads) * widths * to_double(config.train.sequence + 1);
  return {.name = "attention scores", .forward = forward, .input_gradient = 2 * forward};
}

// FLOPs of norms are not counted.
CostItem norm_cost(double count) {
  return {.name = "norms", .parameters = count, .trained = count, .active = count};
}

// Removes the weight gradients of frozen weights.
std::vector<CostItem> trained(const Config& config, std::vector<CostItem> items) {
  if (config.train.trains_all()) return items;
  for (CostItem& item : items) {
    if (!item.is_router()) item.trained = item.weight_gradient = 0;
  }
  return items;
}

double layer_norm_weights(const ModelConfig& m) {
  const int64_t hidden = 2 * m.hidden_size;
  if (m.is_deepseek()) return to_double(hidden + m.q_lora_rank + m.kv_lora_rank);
  switch (m.type().qk_norm) {
    case QkNorm::kNone:
      return to_double(hidden);
    case QkNorm::kHead:
      return to_double(hidden + 2 * m.head_dim);
    case QkNorm::kProjection:
      return to_double(hidden + (m.num_attention_heads + m.num_key_value_heads) * m.head_dim);
  }
  throw std::logic_error("unknown QkNorm");
}

void add(std::vector<CostItem>& sums, const CostItem& item) {
  const auto found =
      std::find_if(sums.begin(), sums.end(), [&](const CostItem& sum) { return sum.name == item.name; });
  if (found == sums.end()) {
    sums.push_back(item);
  } else {
    *found += item;
  }
}

}  // namespace

CostItem& CostItem::operator+=(const CostItem& other) {
  parameters += other.parameters;
  trained += other.trained;
  active += other.active;
  forward += other.forward;
  input_gradient += other.input_gradient;
  weight_gradient += other.weight_gradient;
  paper += other.paper;
  return *this;
}

CostItem gemm_cost(const std::string& name, double parameters, double active, bool input_gradient) {
  return {.name = name,
          .parameters = parameters,
          .trained = parameters,
          .active = active,
          .forward = 2 * active,
          .input_gradient = input_gradient ? 2 * active : 0,
          .weight_gradient = 2 * active,
          .paper = 6 * active};
}

bool reaches_input(const Config& config, int64_t i) {
  if (config.train.trains_all()) return true;
  const auto numbers = moe_layer_numbers_with_modules(config.model);
  return std::any_of(numbers.begin(), numbers.begin() + i, [](int64_t l) { return l > 0; });
}

std::vector<CostItem> mtp_costs(const Config& config) {
  const ModelConfig& m = config.model;
  const double d = to_double(m.hidden_size), modules = to_double(m.num_nextn_predict_layers);
  if (modules == 0) return {};
  const double table = to_double(m.vocab_size) * d;
  CostItem output = gemm_cost("output", 0, modules * table);
  output.active = 0;  // the main model's
  return trained(config, {gemm_cost("multi-token prediction", modules * 2 * d * d, modules * 2 * d * d),
                          norm_cost(modules * 3 * d), output});
}

std::vector<CostItem> layer_costs(const Config& config, int64_t i, int64_t visible) {
  const ModelConfig& m = config.model;
  const double d = to_double(m.hidden_size), e = to_double(m.num_experts);
  std::vector<CostItem> items = {attention_projection_cost(m), attention_score_cost(config),
                                 norm_cost(layer_norm_weights(m))};
  const int64_t l = moe_layer_numbers_with_modules(m)[i];
  if (l == 0) {
    const double weights = 3 * d * to_double(m.intermediate_size);
    items.push_back(gemm_cost("dense layers", weights, weights));
  } else {
    const double expert = 3 * d * to_double(m.moe_intermediate_size),
                 shared = to_double(m.n_shared_experts) * expert;
    for (const CostItem& item : router_kind(config.router).costs(config, l, visible)) items.push_back(item);
    items.push_back(gemm_cost("experts", e * expert, to_double(m.num_experts_per_tok) * expert));
    items.push_back(gemm_cost("shared experts", shared, shared));
  }
  if (!reaches_input(config, i)) {
    for (CostItem& item : items) {
      if (!item.is_router()) item.input_gradient = 0;
    }
  }
  return trained(config, items);
}

std::vector<int64_t> visible_counts(const Config& config) {
  const auto numbers = moe_layer_numbers_with_modules(config.model);
  std::vector<int64_t> counts(numbers.size(), 0);
  const RouterKind& kind = router_kind(config.router);
  if (kind.history_width(config.model.num_experts, config.router) == 0 || moe_layers(config.model) == 0)
    return counts;
  const auto stage_of = stage_of_layers_with_modules(config.model, config.router);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] > 0)
      counts[i] = static_cast<int64_t>(kind.visible(numbers[i], stage_of, config.router).size());
  }
  return counts;
}

std::vector<CostItem> model_costs(const Config& config) {
  const ModelConfig& m = config.model;
  const double table = to_double(m.vocab_size) * to_double(m.hidden_size);
  std::vector<CostItem> sums;
  const auto add_all = [&](const std::vector<CostItem>& items) {
    for (const CostItem& item : items) add(sums, item);
  };
  add_all(trained(config, {{.name = "embedding", .parameters = table, .trained = table}}));
  const auto visible = visible_counts(config);
  for (int64_t i = 0; i < std::ssize(visible); ++i) add_all(layer_costs(config, i, visible[i]));
  add_all(trained(config, {norm_cost(to_double(m.hidden_size)),
                           gemm_cost("output", m.tie_word_embeddings ? 0 : table, table)}));
  add_all(mtp_costs(config));
  return sums;
}

double training_flops_per_token(const Config& config) {
  double sum = 0;
  for (const CostItem& item : model_costs(config)) sum += item.forward + item.backward();
  return sum;
}

}  // namespace hero
