#include "optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <numbers>

#include "ops/ops.h"

namespace hero {
namespace {

// Scalars on the gradients' device.
struct Clipping {
  std::optional<at::Tensor> scale;  // fp64 factor of the gradients
  std::optional<at::Tensor> skip;   // fp32, 1: skip the update
};

// On the CPU the norm can be read, so gradients are scaled only if necessary.
std::optional<Clipping> clipping_on_cpu(double norm, double limit) {
  if (!std::isfinite(norm)) return std::nullopt;
  if (limit == 0 || norm <= limit) return Clipping{};
  return Clipping{.scale = at::full({}, limit / norm, at::TensorOptions(at::kDouble)), .skip = {}};
}

Clipping clipping_on_device(const at::Tensor& norm, double limit) {
  const auto finite = norm.isfinite();
  const auto excess = limit > 0 ? (norm / limit).clamp_min(1.0) : at::ones_like(norm);
  return {.scale = at::where(finite, excess.reciprocal(), 1.0), .skip = finite.logical_not().to(at::kFloat)};
}

}  // namespace

AdamW::AdamW(Parameters& parameters, const OptimConfig& config) : AdamW(parameters, config, nullptr) {}

AdamW::AdamW(Parameters& parameters, const OptimConfig& config, const Group& data, const Group& replica)
    : AdamW(parameters, config, std::make_unique<Buckets>(parameters, data, replica)) {}

AdamW::AdamW(Parameters& parameters, const OptimConfig& config, std::unique_ptr<Buckets> buckets)
    : parameters_(&parameters),
      config_(config),
      step_(at::zeros({}, at::TensorOptions(parameters.device()).dtype(at::kFloat))),
      buckets_(std::move(buckets)) {
  if (buckets_) shards_ = buckets_->shards();
  const auto& all = parameters.all();
  for (size_t i = 0; i < all.size(); ++i) {
    // Replicated parameters without a bucket (frozen ones) belong to the first rank.
    if (buckets_ && (buckets_->contains(i) || !buckets_->is_first_rank_of(i))) continue;
    shards_.push_back(
        {.parameter = i, .begin = 0, .end = all[i].values.numel(), .values = all[i].values.view({-1})});
  }
  for (auto& shard : shards_) {
    if (!all[shard.parameter].leaf.requires_grad()) continue;
    shard.exp_avg = at::zeros_like(shard.values);
    shard.exp_avg_sq = at::zeros_like(shard.values);
  }
}

at::Tensor AdamW::gradient(const ParameterShard& shard) const {
  if (buckets_ && buckets_->contains(shard.parameter)) return buckets_->gradient(shard);
  const auto& gradient = parameters_->all()[shard.parameter].leaf.grad();
  return gradient.defined() ? gradient.view({-1}) : at::Tensor();
}

at::Tensor AdamW::squared_gradient_norm() const {
  std::vector<at::Tensor> gradients;
  for (const auto& shard : shards_) {
    if (auto g = gradient(shard); g.defined()) gradients.push_back(std::move(g));
  }
  if (gradients.empty()) return at::zeros({}, step_.options().dtype(at::kDouble));
  return ops::sum_of_squares(gradients);
}

std::string AdamW::non_finite_gradient() const {
  for (const auto& shard : shards_) {
    const auto g = gradient(shard);
    if (g.defined() && !g.isfinite().all().item<bool>()) return parameters_->all()[shard.parameter].name;
  }
  return "";
}

void AdamW::step(int64_t step, double lr, const at::Tensor& norm) {
  at::NoGradGuard no_grad;
  const auto clipping = norm.is_cpu() ? clipping_on_cpu(norm.item<double>(), config_.clip_norm)
                                      : clipping_on_device(norm, config_.clip_norm);
  if (!clipping) return;
  step_.fill_(static_cast<double>(step));
  for (const bool decay : {true, false}) {
    std::vector<at::Tensor> values, gradients, first, second, leaves;
    for (const auto& shard : shards_) {
      const auto& parameter = parameters_->all()[shard.parameter];
      if (parameter.decay != decay) continue;
      auto g = gradient(shard);
      if (!g.defined()) continue;
      values.push_back(shard.values);
      gradients.push_back(std::move(g));
      first.push_back(shard.exp_avg);
      second.push_back(shard.exp_avg_sq);
      // Leaves in buckets are updated by all_gather_values.
      const bool unsharded = !buckets_ || !buckets_->contains(shard.parameter);
      const bool separate_leaf = parameter.leaf.scalar_type() != shard.values.scalar_type();
      leaves.push_back(unsharded && separate_leaf ? parameter.leaf.detach().view({-1}) : shard.values);
    }
    ops::adamw_step(values, gradients, first, second, leaves, step_,
                    {.lr = lr,
                     .beta1 = config_.beta1,
                     .beta2 = config_.beta2,
                     .weight_decay = decay ? config_.weight_decay : 0.0,
                     .eps = config_.eps},
                    clipping->scale, clipping->skip);
  }
  if (buckets_) buckets_->all_gather_values();
}

void AdamW::zero_grad(bool keep) {
  std::vector<at::Tensor> kept;
  for (auto& p : parameters_->all()) {
    auto& gradient = p.leaf.mutable_grad();
    if (!keep) gradient = at::Tensor();
    if (gradient.defined()) kept.push_back(gradient);
  }
  if (!kept.empty()) at::_foreach_zero_(kept);
}

double learning_rate(const OptimConfig& config, int64_t step, int64_t steps) {
  if (step <= config.warmup_steps)
    return config.lr * static_cast<double>(step) / static_cast<double>(config.warmup_steps);
  const auto span = static_cast<double>(std::max<int64_t>(steps - config.warmup_steps, 1));
  const double progress = std::min(1.0, static_cast<double>(step - config.warmup_steps) / span);
  return config.min_lr + 0.5 * (config.lr - config.min_lr) * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace hero
