// Rotary embedding, grouped-query attention and latent attention, head by head.
#include "oracle/attention.h"

#include <cmath>
#include <numbers>

namespace oracle {

using at::Tensor;

Tensor norm(const Tensor& x, const Tensor& weight, double eps) {
  return x / (x.pow(2).mean(-1, true) + eps).sqrt() * weight;
}

Tensor project(const Tensor& x, const Tensor& weight) { return at::matmul(x, weight.t()); }

namespace {

// Angle per position of pair i of R dimensions. YaRN (arXiv 2309.00071, section 3.2): pairs with more than
// beta_fast rotations over the original length keep their frequency, those with fewer than beta_slow
// rotations have it divided by `factor`, with a linear ramp over the pair index in between; bounds as in
// transformers.
double frequency(int64_t i, int64_t width, const hero::ModelConfig& m) {
  const auto size = static_cast<double>(width), index = static_cast<double>(i);
  const double plain = std::pow(m.rope_theta, -2.0 * index / size);
  const auto& yarn = m.rope_scaling;
  if (yarn.type != hero::RopeType::kYarn) return plain;
  const auto correction_dim = [&](double rotations) {
    const auto most = static_cast<double>(yarn.original_max_position_embeddings) / (2 * std::numbers::pi);
    return size / 2 * std::log(most / rotations) / std::log(m.rope_theta);
  };
  double first = correction_dim(yarn.beta_fast), last = correction_dim(yarn.beta_slow);
  if (yarn.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::fmax(first, 0);
  last = std::fmin(last, size - 1);
  if (first == last) last += 0.001;
  const double ramp = std::fmin(std::fmax((index - first) / (last - first), 0), 1);
  return ramp * plain / yarn.factor + (1 - ramp) * plain;
}

double yarn_mscale(double factor, double mscale) {
  return factor > 1 ? 1 + 0.1 * mscale * std::log(factor) : 1;
}

// YaRN's attention factor, applied to cosine and sine.
double attention_factor_of(const hero::RopeScaling& yarn) {
  if (yarn.type != hero::RopeType::kYarn) return 1;
  if (yarn.attention_factor != 0) return yarn.attention_factor;
  if (yarn.mscale == 0 || yarn.mscale_all_dim == 0) return yarn_mscale(yarn.factor, 1);
  return yarn_mscale(yarn.factor, yarn.mscale) / yarn_mscale(yarn.factor, yarn.mscale_all_dim);
}

// x [S, R]: rotates pair i at position s by the angle s * frequency(i).
Tensor rotate(const Tensor& x, const hero::ModelConfig& m, bool interleaved, const Tensor& positions) {
  const int64_t width = x.size(1), half = width / 2;
  std::vector<Tensor> columns(width);
  for (int64_t i = 0; i < half; ++i) {
    const int64_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
    const auto angle = positions * frequency(i, width, m);
    const auto cosine = angle.cos() * attention_factor_of(m.rope_scaling),
               sine = angle.sin() * attention_factor_of(m.rope_scaling);
    columns[a] = x.select(1, a) * cosine - x.select(1, b) * sine;
    columns[b] = x.select(1, a) * sine + x.select(1, b) * cosine;
  }
  return at::stack(columns, 1);
}

// One head of one sequence: q, k [S, Q], v [S, P].
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& visible, double& max_logit,
              double factor = 1) {
  const auto scores = project(q, k) / std::sqrt(static_cast<double>(q.size(1))) * factor;
  const auto masked = scores.masked_fill(~visible, -INFINITY);
  max_logit = std::max(max_logit, masked.max().item<double>());
  return at::matmul(masked.softmax(1), v);
}

Tensor grouped_query(const hero::ModelConfig& m, const Weights& w, const std::string& prefix, const Tensor& x,
                     const Scope& scope, double& max_logit) {
  const int64_t p = m.head_dim, shared = m.num_attention_heads / m.num_key_value_heads;
  auto q = project(x, w.at(prefix + "q_proj.weight")), k = project(x, w.at(prefix + "k_proj.weight"));
  const auto v = project(x, w.at(prefix + "v_proj.weight"));
  const bool per_head = m.model_type == hero::ModelType::kQwen3Moe;
  if (m.model_type == hero::ModelType::kOlmoe) {
    q = norm(q, w.at(prefix + "q_norm.weight"), m.rms_norm_eps);
    k = norm(k, w.at(prefix + "k_norm.weight"), m.rms_norm_eps);
  }
  std::vector<Tensor> heads;
  for (int64_t h = 0; h < m.num_attention_heads; ++h) {
    const int64_t g = h / shared;
    const auto head = [&](const Tensor& t, int64_t i) { return t.slice(1, i * p, (i + 1) * p); };
    const auto normed_q =
                   per_head ? norm(head(q, h), w.at(prefix + "q_norm.weight"), m.rms_norm_eps) : head(q, h),
               normed_k =
                   per_head ? norm(head(k, g), w.at(prefix + "k_norm.weight"), m.rms_norm_eps) : head(k, g);
    heads.push_back(attend(rotate(normed_q, m, false, scope.positions),
                           rotate(normed_k, m, false, scope.positions), head(v, g), scope.visible,
                           max_logit));
  }
  return project(at::cat(heads, 1), w.at(prefix + "o_proj.weight"));
}

Tensor latent(const hero::ModelConfig& m, const Weights& w, const std::string& prefix, const Tensor& x,
              const Scope& scope, double& max_logit) {
  const int64_t nope = m.qk_nope_head_dim, width = nope + m.qk_rope_head_dim, rank = m.kv_lora_rank;
  const auto q = m.q_lora_rank ? project(norm(project(x, w.at(prefix + "q_a_proj.weight")),
                                              w.at(prefix + "q_a_layernorm.weight"), 1e-6),
                                         w.at(prefix + "q_b_proj.weight"))
                               : project(x, w.at(prefix + "q_proj.weight"));
  const auto down = project(x, w.at(prefix + "kv_a_proj_with_mqa.weight"));
  const auto kv = project(norm(down.slice(1, 0, rank), w.at(prefix + "kv_a_layernorm.weight"), 1e-6),
                          w.at(prefix + "kv_b_proj.weight"));
  const auto shared_key = rotate(down.slice(1, rank), m, m.rope_interleave, scope.positions);
  const auto& yarn = m.rope_scaling;
  const double mscale = yarn.type == hero::RopeType::kYarn && yarn.mscale_all_dim != 0
                            ? yarn_mscale(yarn.factor, yarn.mscale_all_dim)
                            : 1;
  std::vector<Tensor> heads;
  for (int64_t h = 0; h < m.num_attention_heads; ++h) {
    const auto query = q.slice(1, h * width, (h + 1) * width);
    const auto key_value = kv.slice(1, h * (nope + m.v_head_dim), (h + 1) * (nope + m.v_head_dim));
    heads.push_back(attend(at::cat({query.slice(1, 0, nope),
                                    rotate(query.slice(1, nope), m, m.rope_interleave, scope.positions)},
                                   1),
                           at::cat({key_value.slice(1, 0, nope), shared_key}, 1), key_value.slice(1, nope),
                           scope.visible, max_logit, mscale * mscale));
  }
  return project(at::cat(heads, 1), w.at(prefix + "o_proj.weight"));
}

}  // namespace

Tensor attention(const hero::ModelConfig& model, const Weights& weights, const std::string& prefix,
                 const Tensor& x, const Scope& scope, double& max_logit) {
  return model.model_type == hero::ModelType::kDeepseekV3
             ? latent(model, weights, prefix, x, scope, max_logit)
             : grouped_query(model, weights, prefix, x, scope, max_logit);
}

}  // namespace oracle
