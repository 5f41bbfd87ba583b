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

namespace {

// One forward pass; layers add their routing to `result`.
class ForwardPass {
 public:
  ForwardPass(const hero::Config& config, const Weights& weights, int64_t batch, int64_t length,
              const Pass& pass)
      : config_(config), m_(config.model), w_(weights), batch_(batch), length_(length), pass_(pass) {
    int64_t sparse_layers = 0;
    for (int64_t i = 0; i < m_.num_hidden_layers; ++i) sparse_layers += !is_dense(m_, i);
    stage_of_ = stages(sparse_layers, config.router);
    for (int64_t k = 0; k < m_.num_nextn_predict_layers; ++k) stage_of_.push_back(stage_of_.back());
  }

  Tensor decoder_layer(int64_t i, Tensor x) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    std::vector<Tensor> sequences;
    const auto normed = norm(x, w_.at(prefix + "input_layernorm.weight"), m_.rms_norm_eps);
    double& max_logit = result.max_attention_logits.emplace_back(-INFINITY);
    for (int64_t b = 0; b < batch_; ++b) {
      const auto sequence = normed.slice(0, b * length_, (b + 1) * length_);
      const auto documents = pass_.documents_BS.defined() ? pass_.documents_BS[b] : Tensor();
      const auto scope = scope_of(config_.train, documents, length_);
      sequences.push_back(attention(m_, w_, prefix + "self_attn.", sequence, scope, max_logit));
    }
    x = x + at::cat(sequences, 0);
    const auto input = norm(x, w_.at(prefix + "post_attention_layernorm.weight"), m_.rms_norm_eps);
    return x + (is_dense(m_, i) ? feed_forward(w_, prefix + "mlp.", input) : experts(i, prefix, input));
  }

  // Module k's hidden states from those of its predecessor; zeros for tokens after the last input.
  Tensor module(int64_t k, const Tensor& hidden, const Tensor& embedded) {
    const int64_t i = m_.num_hidden_layers + k - 1;
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    auto later = at::zeros_like(embedded);
    for (int64_t b = 0; b < batch_; ++b) {
      const int64_t first = b * length_, end = first + length_;
      later.slice(0, first, end - k).copy_(embedded.slice(0, first + k, end));
    }
    const auto& both = w_.at(prefix + "eh_proj.weight");
    const auto x =
        project(norm(later, w_.at(prefix + "enorm.weight"), m_.rms_norm_eps),
                both.slice(1, 0, m_.hidden_size)) +
        project(norm(hidden, w_.at(prefix + "hnorm.weight"), m_.rms_norm_eps), both.slice(1, m_.hidden_size));
    return norm(decoder_layer(i, x), w_.at(prefix + "shared_head.norm.weight"), m_.rms_norm_eps);
  }

  Result result;

 private:
  Tensor experts(int64_t i, const std::string& prefix, const Tensor& input) {
    const auto l = static_cast<int64_t>(result.layers.size()) + 1;
    const auto seen = visible(l, config_.router, stage_of_);
    const bool mixtral = m_.model_type == hero::ModelType::kMixtral;
    const std::string block = prefix + (mixtral ? "block_sparse_moe." : "mlp."), gate = block + "gate.";
    const bool noisy = pass_.training && config_.router.jitter > 0;
    LayerRouting routing{.x = noisy ? input * jitter(config_, l, batch_ * length_, pass_) : input,
                         .layer = l,
                         .decoder_layer = i};
    if (config_.router.kind == "rmoe") {
      if (seen.empty()) gru_ = gate + "gru.";
      auto before = seen.empty() ? at::zeros({batch_ * length_, config_.router.state_size}, at::kDouble)
                                 : result.layers[l - 2].state;
      if (!seen.empty()) routing.history = before;
      if (config_.router.detach) before = before.detach();
      routing.state = gru_state(project(routing.x, w_.at(gate + "projection.weight")), before, w_, gru_);
      routing.logits = project(routing.state, w_.at(gate + "weight"));
    } else {
      std::vector<Tensor> history;
      for (const int64_t j : seen) history.push_back(result.layers[j - 1].probs);
      if (!history.empty()) routing.history = at::cat(history, 1);
      routing.logits = router_logits(routing.x, w_.at(gate + "weight"), history, l, config_.router);
    }
    const auto bias = w_.find(prefix + "mlp.gate.e_score_correction_bias");
    select_experts(config_, bias == w_.end() ? Tensor() : bias->second, routing, pass_);
    Tensor y = at::zeros_like(input);
    for (int64_t e = 0; e < m_.num_experts; ++e) {
      y = y + routing.gates.slice(1, e, e + 1) *
                  feed_forward(w_, block + "experts." + std::to_string(e) + ".", input, mixtral);
    }
    if (m_.n_shared_experts) y = y + feed_forward(w_, prefix + "mlp.shared_experts.", input);
    result.layers.push_back(routing);
    return y;
  }

  const hero::Config& config_;
  const hero::ModelConfig& m_;
  const Weights& w_;
  int64_t batch_, length_;
  const Pass& pass_;
  std::vector<int64_t> stage_of_;
  std::string gru_;  // prefix of the stage's GRU, which its first MoE layer has
};

}  // namespace

Result forward(const hero::Config& config, const Weights& w, const Tensor& tokens_BS, const Pass& pass) {
  const auto& m = config.model;
  const int64_t batch = tokens_BS.size(0), length = tokens_BS.size(1);
  ForwardPass model(config, w, batch, length, pass);
  const auto embedded = w.at("model.embed_tokens.weight").index({tokens_BS.flatten()});
  auto x = embedded;
  for (int64_t i = 0; i < m.num_hidden_layers; ++i) x = model.decoder_layer(i, x);
  x = norm(x, w.at("model.norm.weight"), m.rms_norm_eps);
  const auto& head = w.at(m.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  const auto logits = [&] { return project(x, head).view({batch, length, m.vocab_size}); };
  model.result.logits = logits();
  for (int64_t k = 1; pass.training && k <= m.num_nextn_predict_layers; ++k) {
    x = model.module(k, x, embedded);
    model.result.modules.push_back(logits());
  }
  return model.result;
}

}  // namespace oracle
