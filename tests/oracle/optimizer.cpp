#include "oracle/optimizer.h"

#include <cmath>

namespace oracle {
namespace {

using at::Tensor;

bool has(const std::string& name, const std::string& part) { return name.find(part) != std::string::npos; }

// Approximates U V^T of g = U S V^T: sigma <- 3.4445 sigma - 4.7750 sigma^3 + 2.0315 sigma^5, five times,
// from g divided by its Frobenius norm.
Tensor orthogonalized(const Tensor& g) {
  Tensor x = g / std::max(std::sqrt(g.square().sum().item<double>()), 1e-7);
  for (int i = 0; i < 5; ++i) {
    const auto cube = at::matmul(x, at::matmul(x.t(), x));
    const auto fifth = at::matmul(cube, at::matmul(x.t(), x));
    x = 3.4445 * x - 4.7750 * cube + 2.0315 * fifth;
  }
  return x;
}

}  // namespace

std::pair<std::string, int64_t> component(const std::string& name, const Tensor& weight, bool history) {
  if (name == "model.embed_tokens.weight") return {"embedding", -1};
  if (name == "lm_head.weight") return {"head", -1};
  if (name == "model.norm.weight") return {"final_norm", -1};
  const int64_t layer = std::stoll(name.substr(std::string("model.layers.").size()));
  if (has(name, ".gate.")) return {history ? "w_r" : "w_o", layer};
  if (weight.dim() == 1) return {"norm", layer};
  if (has(name, "self_attn.")) return {"attention", layer};
  return {has(name, ".experts.") ? "experts" : "mlp", layer};
}

int64_t hidden_columns(const hero::Config& config, const std::string& name, const Tensor& weight) {
  const bool split = config.router.kind == "hero" && has(name, ".gate.weight");
  return split ? config.model.hidden_size : weight.size(-1);
}

void Optimizer::update(const std::string& name, const Tensor& weight, const Tensor& gradient, int64_t step,
                       double rate) {
  const auto& o = config_.optim;
  const int64_t split = hidden_columns(config_, name, weight), columns = weight.size(-1);
  for (const bool history : {false, true}) {
    const int64_t begin = history ? split : 0, end = history ? columns : split;
    if (begin == end) continue;
    const auto kind = component(name, weight, history).first;
    const bool matrix = weight.dim() == 2;
    Rates rates{1, matrix ? o.weight_decay : 0.0};
    if (kind == "w_o") rates.factor = o.router_lr;
    if (kind == "w_r") rates.factor = o.history_lr;
    if (kind == "w_r" && o.history_weight_decay >= 0) rates.decay = o.history_weight_decay;
    const bool router = kind == "w_o" || kind == "w_r";
    const bool hidden =
        kind == "attention" || kind == "experts" || kind == "mlp" || (router && o.muon_router);
    const auto part = weight.slice(-1, begin, end), g = gradient.slice(-1, begin, end);
    const auto key = name + (history ? "#R" : "");
    if (o.kind == hero::OptimKind::kMuon && matrix && hidden) {
      muon(key, part, g, rate, rates);
    } else {
      adamw(key, part, g, step, rate, rates);
    }
  }
}

void Optimizer::adamw(const std::string& name, const Tensor& weight, const Tensor& g, int64_t step,
                      double rate, Rates rates) {
  const auto& o = config_.optim;
  auto& first = first_.try_emplace(name, at::zeros_like(g)).first->second;
  auto& second = second_.try_emplace(name, at::zeros_like(g)).first->second;
  first = o.beta1 * first + (1 - o.beta1) * g;
  second = o.beta2 * second + (1 - o.beta2) * g * g;
  const auto t = static_cast<double>(step);
  const auto mean = first / (1 - std::pow(o.beta1, t)), square = second / (1 - std::pow(o.beta2, t));
  weight.copy_(weight - rate * rates.factor * (mean / (square.sqrt() + o.eps) + rates.decay * weight));
}

void Optimizer::muon(const std::string& name, const Tensor& weight, const Tensor& g, double rate,
                     Rates rates) {
  const double mu = config_.optim.muon_momentum;
  auto& buffer = first_.try_emplace(name, at::zeros_like(g)).first->second;
  buffer = mu * buffer + (1 - mu) * g;
  const auto direction = orthogonalized((1 - mu) * g + mu * buffer);
  const auto scale = 0.2 * std::sqrt(static_cast<double>(std::max(g.size(0), g.size(1))));
  weight.copy_(weight - rate * rates.factor * (scale * direction + rates.decay * weight));
}

}  // namespace oracle
