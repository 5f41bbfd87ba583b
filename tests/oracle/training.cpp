#include "oracle/training.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace oracle {

using at::Tensor;

Training::Training(const hero::Config& config, Weights weights, double rounding)
    : config_(config), weights_(std::move(weights)), rounding_(rounding), optimizer_(config) {}

bool Training::trains(const std::string& name) const {
  if (name.ends_with("e_score_correction_bias")) return false;
  return config_.train.trainable == hero::Trainable::kAll || name.find(".gate.") != std::string::npos;
}

Training::Step Training::step(int64_t step, const Tensor& samples, const Tensor& documents) {
  const auto& t = config_.train;
  Step out;
  Tensor assigned_LE;
  for (auto& [name, weight] : weights_) weight.mutable_grad() = Tensor();
  for (int64_t i = 0; i < t.global_batch / t.micro_batch; ++i) {
    const auto part = [&](const Tensor& x) {
      return x.defined() ? x.slice(0, i * t.micro_batch, (i + 1) * t.micro_batch) : x;
    };
    micro_batch(step, i, part(samples), part(documents), out, assigned_LE);
  }
  double square = 0, largest = 0;
  for (const auto& [name, weight] : weights_) {
    if (weight.grad().defined()) largest = std::max(largest, weight.grad().abs().max().item<double>());
  }
  for (const auto& [name, weight] : weights_) {
    if (!trains(name)) continue;
    const auto& gradient = weight.grad();
    const auto values = gradient.defined() ? gradient : at::zeros_like(weight);
    const auto signs = 1 - 2 * at::arange(values.numel(), at::kDouble).remainder(2);
    out.gradients[name] = values + rounding_ * largest * signs.view_as(values);
    square += out.gradients[name].square().sum().item<double>();
  }
  out.gradient_norm = std::sqrt(square);
  at::NoGradGuard no_grad;
  update(step, out);
  shares_LE_ = assigned_LE / assigned_LE.sum(1, true);
  update_biases(assigned_LE);
  return out;
}

void Training::micro_batch(int64_t step, int64_t i, const Tensor& samples, const Tensor& documents, Step& out,
                           Tensor& assigned_LE) {
  const auto& t = config_.train;
  const auto result = forward(config_, weights_, samples.slice(1, 0, t.sequence),
                              {.training = true,
                               .step = step,
                               .first_token = i * t.micro_batch * t.sequence,
                               .documents_BS = documents});
  const auto layers = static_cast<int64_t>(result.layers.size());
  if (!shares_LE_.defined())
    shares_LE_ = at::full({layers, config_.model.num_experts},
                          1.0 / static_cast<double>(config_.model.num_experts), at::kDouble);
  const auto found =
      losses(config_, result, samples.slice(1, 1).flatten(), t.sequence, shares_LE_, documents);
  const double share = static_cast<double>(t.micro_batch) / static_cast<double>(t.global_batch);
  (found.total * share).backward();
  raise_logits(result, out);
  out.layers.resize(result.layers.size());
  for (size_t i = 0; i < result.layers.size(); ++i) out.layers[i].add(config_, weights_, result.layers[i]);
  out.loss += found.total.item<double>() * share;
  out.lm += found.lm.item<double>() * share;
  out.mtp += found.mtp.item<double>() * share;
  out.balance += found.balance.item<double>() * share;
  out.z += found.z.item<double>() * share;
  out.coupling += found.coupling.item<double>() * share;
  std::vector<Tensor> counts;
  for (const auto& r : result.layers) counts.push_back(r.chosen.sum(0));
  assigned_LE = assigned_LE.defined() ? assigned_LE + at::stack(counts) : at::stack(counts);
}

void Training::raise_logits(const Result& result, Step& out) {
  const auto raise = [&](const std::string& key, double logit) {
    const auto known = out.norms.try_emplace(key, logit).first;
    known->second = std::max(known->second, logit);
  };
  for (size_t i = 0; i < result.max_attention_logits.size(); ++i)
    raise("max_attention_logit//" + std::to_string(i), result.max_attention_logits[i]);
  for (const auto& r : result.layers)
    raise("max_router_logit//" + std::to_string(r.decoder_layer), r.logits.max().item<double>());
}

void Training::update(int64_t step, Step& found) {
  const auto& o = config_.optim;
  const bool clip = o.clip_norm > 0 && found.gradient_norm > o.clip_norm;
  const double rate = learning_rate(config_, step);
  std::map<std::string, double> sums, counts;
  for (auto& [name, weight] : weights_) {
    if (name.ends_with("e_score_correction_bias")) continue;
    const auto before = weight.detach().clone();
    if (trains(name)) {
      const auto& g = found.gradients.at(name);
      optimizer_.update(name, weight, clip ? g * (o.clip_norm / found.gradient_norm) : g, step, rate);
    }
    const int64_t split = hidden_columns(config_, name, weight);
    for (const bool history : {false, true}) {
      const auto part = [&](const Tensor& t) { return history ? t.slice(-1, split) : t.slice(-1, 0, split); };
      if (part(before).numel() == 0) continue;
      const auto [key, layer] = component(name, weight, history);
      const auto where = "/" + key + "/" + std::to_string(layer);
      const auto square = [&](const Tensor& t) { return part(t).square().sum().item<double>(); };
      if (trains(name)) sums["gradient" + where] += square(found.gradients.at(name));
      sums["update" + where] += square(weight - before);
      sums["weight" + where] += square(before);
      counts[where] += static_cast<double>(part(before).numel());
    }
  }
  for (const auto& [where, count] : counts) {
    found.norms["grad_norm" + where] = std::sqrt(sums["gradient" + where]);
    found.norms["update_ratio" + where] = std::sqrt(sums["update" + where] / sums["weight" + where]);
    found.norms["weight_rms" + where] = std::sqrt(sums["weight" + where] / count);
  }
}

// b += rate * sign(mean - count) (arXiv 2408.15664); biases are kept in fp32.
void Training::update_biases(const Tensor& assigned_LE) {
  const auto rate = static_cast<double>(static_cast<float>(config_.router.bias_update_rate));
  int64_t l = 0;
  const auto& m = config_.model;
  for (int64_t i = 0; i < m.num_hidden_layers + m.num_nextn_predict_layers; ++i) {
    const auto bias =
        weights_.find("model.layers." + std::to_string(i) + ".mlp.gate.e_score_correction_bias");
    if (bias == weights_.end()) continue;
    const auto counts = assigned_LE[l++];
    const auto moved = bias->second + rate * (counts.mean() - counts).sign();
    bias->second.copy_(moved.to(at::kFloat));
  }
}

double learning_rate(const hero::Config& config, int64_t step) {
  const auto& o = config.optim;
  if (step <= o.warmup_steps) return o.lr * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
  const int64_t steps = config.train.steps, stable = steps - o.warmup_steps;
  int64_t length = o.decay_steps;
  if (length == 0)
    length = o.schedule == hero::LrSchedule::kWsd ? std::min((steps + 9) / 10, stable) : stable;
  const int64_t left = o.schedule == hero::LrSchedule::kWsd ? steps - step : o.warmup_steps + length - step;
  const double x = 1 - std::clamp(static_cast<double>(left) / static_cast<double>(length), 0.0, 1.0);
  const auto is = [&](hero::LrSchedule schedule, hero::DecayShape shape) {
    return o.schedule == schedule || (o.schedule == hero::LrSchedule::kWsd && o.decay_shape == shape);
  };
  double share = 1;
  if (is(hero::LrSchedule::kCosine, hero::DecayShape::kCosine))
    share = (1 + std::cos(std::numbers::pi * x)) / 2;
  if (is(hero::LrSchedule::kLinear, hero::DecayShape::kLinear)) share = 1 - x;
  if (o.schedule == hero::LrSchedule::kWsd && o.decay_shape == hero::DecayShape::k1Sqrt)
    share = 1 - std::sqrt(x);
  return o.min_lr + (o.lr - o.min_lr) * share;
}

}  // namespace oracle
