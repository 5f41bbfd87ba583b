#include "oracle/oracle.h"

#include <algorithm>

#include "model/random.h"
#include "oracle/attention.h"
#include "oracle/sparse.h"

namespace oracle {
namespace {

using at::Tensor;

Tensor feed_forward(const Weights& w, const std::string& prefix, const Tensor& x, bool mixtral = false) {
  const auto weight = [&](const char* name, const char* in_mixtral) {
    return w.at(prefix + (mixtral ? in_mixtral : name) + ".weight");
  };
  const auto gate = project(x, weight("gate_proj", "w1"));
  return project(gate * gate.sigmoid() * project(x, weight("up_proj", "w3")), weight("down_proj", "w2"));
}

// fp32 samples of U(1 - jitter, 1 + jitter) that depend only on step, layer and token index.
Tensor jitter(const hero::Config& config, int64_t l, int64_t tokens, const Pass& pass) {
  const double low = 1.0 - config.router.jitter, high = 1.0 + config.router.jitter;
  auto noise = at::empty({tokens, config.model.hidden_size}, at::kDouble);
  for (int64_t t = 0; t < tokens; ++t) {
    const auto name = "jitter/" + std::to_string(pass.step) + "/" + std::to_string(l) + "/" +
                      std::to_string(pass.first_token + t);
    for (int64_t i = 0; i < config.model.hidden_size; ++i) {
      const double uniform =
          hero::uniform_at(static_cast<uint64_t>(config.train.seed), name, static_cast<uint64_t>(i));
      noise[t][i] = static_cast<float>(low + (high - low) * uniform);
    }
  }
  return noise;
}

Scope scope_of(const hero::TrainConfig& train, const Tensor& documents_S, int64_t length) {
  const auto causal = at::ones({length, length}, at::kBool).tril();
  if (!documents_S.defined()) return {causal, at::arange(length, at::kDouble)};
  const auto own = causal & (documents_S.unsqueeze(0) == documents_S.unsqueeze(1));
  return {train.document_mask ? own : causal,
          (train.document_positions ? own : causal).sum(1).to(at::kDouble) - 1};
}

bool is_dense(const hero::ModelConfig& m, int64_t i) {
  if (m.model_type == hero::ModelType::kDeepseekV3) return i < m.first_k_dense_replace;
  return (i + 1) % m.decoder_sparse_step != 0 ||
         std::find(m.mlp_only_layers.begin(), m.mlp_only_layers.end(), i) != m.mlp_only_layers.end();
}

}  // namespace

Weights copy_weights(const hero::Parameters& parameters) {
  Weights weights;
  for (const auto& [name, values] : parameters.state_dict()) {
    const bool buffer = parameters.buffers().contains(name);
    weights[name] = values.detach().to(at::kDouble).clone().set_requires_grad(!buffer);
  }
  return weights;
}

Result forward(const hero::Config& config, const Weights& w, const Tensor& tokens_BS, const Pass& pass) {
  const auto& m = config.model;
  const int64_t batch = tokens_BS.size(0), length = tokens_BS.size(1);
  int64_t sparse_layers = 0;
  for (int64_t i = 0; i < m.num_hidden_layers; ++i) sparse_layers += !is_dense(m, i);
  const auto stage_of = stages(sparse_layers, config.router);
  Result result;
  std::string gru;  // prefix of the stage's GRU, which its first MoE layer has
  auto x = w.at("model.embed_tokens.weight").index({tokens_BS.flatten()});
  for (int64_t i = 0; i < m.num_hidden_layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    std::vector<Tensor> sequences;
    const auto normed = norm(x, w.at(prefix + "input_layernorm.weight"), m.rms_norm_eps);
    double& max_logit = result.max_attention_logits.emplace_back(-INFINITY);
    for (int64_t b = 0; b < batch; ++b) {
      const auto sequence = normed.slice(0, b * length, (b + 1) * length);
      const auto documents = pass.documents_BS.defined() ? pass.documents_BS[b] : Tensor();
      const auto scope = scope_of(config.train, documents, length);
      sequences.push_back(attention(m, w, prefix + "self_attn.", sequence, scope, max_logit));
    }
    x = x + at::cat(sequences, 0);
    const auto input = norm(x, w.at(prefix + "post_attention_layernorm.weight"), m.rms_norm_eps);
    if (is_dense(m, i)) {
      x = x + feed_forward(w, prefix + "mlp.", input);
      continue;
    }
    const auto l = static_cast<int64_t>(result.layers.size()) + 1;
    const auto seen = visible(l, config.router, stage_of);
    const bool mixtral = m.model_type == hero::ModelType::kMixtral;
    const std::string block = prefix + (mixtral ? "block_sparse_moe." : "mlp."), gate = block + "gate.";
    const bool noisy = pass.training && config.router.jitter > 0;
    LayerRouting routing{
        .x = noisy ? input * jitter(config, l, batch * length, pass) : input, .layer = l, .decoder_layer = i};
    if (config.router.kind == "rmoe") {
      if (seen.empty()) gru = gate + "gru.";
      auto before = seen.empty() ? at::zeros({batch * length, config.router.state_size}, at::kDouble)
                                 : result.layers[l - 2].state;
      if (config.router.detach) before = before.detach();
      routing.state = gru_state(project(routing.x, w.at(gate + "projection.weight")), before, w, gru);
      routing.logits = project(routing.state, w.at(gate + "weight"));
    } else {
      std::vector<Tensor> history;
      for (const int64_t j : seen) history.push_back(result.layers[j - 1].probs);
      routing.logits = router_logits(routing.x, w.at(gate + "weight"), history, l, config.router);
    }
    const auto bias = w.find(prefix + "mlp.gate.e_score_correction_bias");
    select_experts(config, bias == w.end() ? Tensor() : bias->second, routing, pass);
    for (int64_t e = 0; e < m.num_experts; ++e) {
      x = x + routing.gates.slice(1, e, e + 1) *
                  feed_forward(w, block + "experts." + std::to_string(e) + ".", input, mixtral);
    }
    if (m.n_shared_experts) x = x + feed_forward(w, prefix + "mlp.shared_experts.", input);
    result.layers.push_back(routing);
  }
  x = norm(x, w.at("model.norm.weight"), m.rms_norm_eps);
  const auto& head = w.at(m.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  result.logits = project(x, head).view({batch, length, m.vocab_size});
  return result;
}

}  // namespace oracle
