#include "oracle/oracle.h"

#include <cmath>

#include "oracle/sparse.h"

namespace oracle {
namespace {

using at::Tensor;

Tensor norm(const Tensor& x, const Tensor& weight, double eps) {
  return x / (x.pow(2).mean(-1, true) + eps).sqrt() * weight;
}

Tensor project(const Tensor& x, const Tensor& weight) { return at::matmul(x, weight.t()); }

// x [S, R]: pair i of position s turned by the angle s * theta^(-2i/R).
Tensor rotate(const Tensor& x, double theta, bool side_by_side) {
  const int64_t length = x.size(0), width = x.size(1), half = width / 2;
  std::vector<Tensor> columns(width);
  for (int64_t i = 0; i < half; ++i) {
    const int64_t a = side_by_side ? 2 * i : i, b = side_by_side ? 2 * i + 1 : i + half;
    const auto angle = at::arange(length, at::kDouble) *
                       std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(width));
    columns[a] = x.select(1, a) * angle.cos() - x.select(1, b) * angle.sin();
    columns[b] = x.select(1, a) * angle.sin() + x.select(1, b) * angle.cos();
  }
  return at::stack(columns, 1);
}

// One head of one sequence: q, k [S, Q], v [S, P].
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto later = at::ones({q.size(0), q.size(0)}, at::kBool).triu(1);
  const auto scores = project(q, k) / std::sqrt(static_cast<double>(q.size(1)));
  return at::matmul(scores.masked_fill(later, -INFINITY).softmax(1), v);
}

Tensor grouped_query(const hero::ModelConfig& m, const Weights& w, const std::string& at_, const Tensor& x) {
  const int64_t p = m.head_dim, shared = m.num_attention_heads / m.num_key_value_heads;
  const auto q = project(x, w.at(at_ + "q_proj.weight")), k = project(x, w.at(at_ + "k_proj.weight")),
             v = project(x, w.at(at_ + "v_proj.weight"));
  std::vector<Tensor> heads;
  for (int64_t h = 0; h < m.num_attention_heads; ++h) {
    const int64_t g = h / shared;
    const auto head = [&](const Tensor& t, int64_t i) { return t.slice(1, i * p, (i + 1) * p); };
    heads.push_back(
        attend(rotate(norm(head(q, h), w.at(at_ + "q_norm.weight"), m.rms_norm_eps), m.rope_theta, false),
               rotate(norm(head(k, g), w.at(at_ + "k_norm.weight"), m.rms_norm_eps), m.rope_theta, false),
               head(v, g)));
  }
  return project(at::cat(heads, 1), w.at(at_ + "o_proj.weight"));
}

Tensor latent(const hero::ModelConfig& m, const Weights& w, const std::string& at_, const Tensor& x) {
  const int64_t nope = m.qk_nope_head_dim, width = nope + m.qk_rope_head_dim, rank = m.kv_lora_rank;
  const auto q =
      m.q_lora_rank
          ? project(norm(project(x, w.at(at_ + "q_a_proj.weight")), w.at(at_ + "q_a_layernorm.weight"), 1e-6),
                    w.at(at_ + "q_b_proj.weight"))
          : project(x, w.at(at_ + "q_proj.weight"));
  const auto down = project(x, w.at(at_ + "kv_a_proj_with_mqa.weight"));
  const auto kv = project(norm(down.slice(1, 0, rank), w.at(at_ + "kv_a_layernorm.weight"), 1e-6),
                          w.at(at_ + "kv_b_proj.weight"));
  const auto shared_key = rotate(down.slice(1, rank), m.rope_theta, m.rope_interleave);
  std::vector<Tensor> heads;
  for (int64_t h = 0; h < m.num_attention_heads; ++h) {
    const auto query = q.slice(1, h * width, (h + 1) * width);
    const auto key_value = kv.slice(1, h * (nope + m.v_head_dim), (h + 1) * (nope + m.v_head_dim));
    heads.push_back(attend(
        at::cat({query.slice(1, 0, nope), rotate(query.slice(1, nope), m.rope_theta, m.rope_interleave)}, 1),
        at::cat({key_value.slice(1, 0, nope), shared_key}, 1), key_value.slice(1, nope)));
  }
  return project(at::cat(heads, 1), w.at(at_ + "o_proj.weight"));
}

Tensor feed_forward(const Weights& w, const std::string& at_, const Tensor& x) {
  const auto gate = project(x, w.at(at_ + "gate_proj.weight"));
  return project(gate * gate.sigmoid() * project(x, w.at(at_ + "up_proj.weight")),
                 w.at(at_ + "down_proj.weight"));
}

}  // namespace

Weights copy_weights(const hero::Parameters& parameters) {
  Weights weights;
  for (const auto& [name, values] : parameters.disk_tensors()) {
    const bool buffer = parameters.buffers().contains(name);
    weights[name] = values.detach().to(at::kDouble).clone().set_requires_grad(!buffer);
  }
  return weights;
}

Result forward(const hero::Config& config, const Weights& w, const Tensor& tokens_BS) {
  const auto& m = config.model;
  const bool deepseek = m.model_type == "deepseek_v3";
  const int64_t batch = tokens_BS.size(0), length = tokens_BS.size(1),
                dense = deepseek ? m.first_k_dense_replace : 0;
  const auto stage_of = stages(m.num_hidden_layers - dense, config.router.stages);
  Result result;
  auto x = w.at("model.embed_tokens.weight").index({tokens_BS.flatten()});
  for (int64_t i = 0; i < m.num_hidden_layers; ++i) {
    const std::string at_ = "model.layers." + std::to_string(i) + ".";
    std::vector<Tensor> sequences;
    const auto normed = norm(x, w.at(at_ + "input_layernorm.weight"), m.rms_norm_eps);
    for (int64_t b = 0; b < batch; ++b) {
      const auto sequence = normed.slice(0, b * length, (b + 1) * length);
      sequences.push_back(deepseek ? latent(m, w, at_ + "self_attn.", sequence)
                                   : grouped_query(m, w, at_ + "self_attn.", sequence));
    }
    x = x + at::cat(sequences, 0);
    const auto input = norm(x, w.at(at_ + "post_attention_layernorm.weight"), m.rms_norm_eps);
    if (i < dense) {
      x = x + feed_forward(w, at_ + "mlp.", input);
      continue;
    }
    const int64_t l = i - dense + 1;
    std::vector<Tensor> history;
    for (const int64_t j : visible(l, config.router, stage_of)) history.push_back(result.layers[j - 1].probs);
    LayerRouting routing{
        .x = input, .logits = router_logits(input, w.at(at_ + "mlp.gate.weight"), history, l, config.router)};
    const auto bias = w.find(at_ + "mlp.gate.e_score_correction_bias");
    choose(config, bias == w.end() ? Tensor() : bias->second, routing);
    for (int64_t e = 0; e < m.num_experts; ++e) {
      x = x + routing.gates.slice(1, e, e + 1) *
                  feed_forward(w, at_ + "mlp.experts." + std::to_string(e) + ".", input);
    }
    if (m.n_shared_experts) x = x + feed_forward(w, at_ + "mlp.shared_experts.", input);
    result.layers.push_back(routing);
  }
  x = norm(x, w.at("model.norm.weight"), m.rms_norm_eps);
  const auto& head = w.at(m.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  result.logits = project(x, head).view({batch, length, m.vocab_size});
  return result;
}

}  // namespace oracle
