#include "optim/adamw.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

namespace hero {

AdamW::AdamW(Parameters& parameters, const OptimConfig& config) : parameters_(&parameters), config_(config) {
  for (const auto& p : parameters.all()) {
    const bool learns = p.leaf.requires_grad();
    exp_avg_.push_back(learns ? at::zeros_like(p.values) : at::Tensor());
    exp_avg_sq_.push_back(learns ? at::zeros_like(p.values) : at::Tensor());
  }
}

double AdamW::gradient_norm() const {
  std::vector<at::Tensor> gradients;
  for (const auto& p : parameters_->all()) {
    if (p.leaf.grad().defined()) gradients.push_back(p.leaf.grad());
  }
  if (gradients.empty()) return 0.0;
  return at::stack(at::_foreach_norm(gradients, 2)).to(at::kDouble).norm().item<double>();
}

std::string AdamW::non_finite_gradient() const {
  for (const auto& p : parameters_->all()) {
    if (p.leaf.grad().defined() && !p.leaf.grad().isfinite().all().item<bool>()) return p.name;
  }
  return "";
}

void AdamW::step(int64_t step, double lr, double gradient_scale) {
  at::NoGradGuard no_grad;
  // The kernel divides each gradient by an fp32 number as it reads it; fp64 gradients are scaled before.
  std::optional<at::Tensor> divisor;
  if (gradient_scale != 1.0) divisor = at::full({}, 1.0 / gradient_scale, at::TensorOptions(at::kFloat));
  for (const bool decay : {true, false}) {
    std::vector<at::Tensor> values, gradients, first, second, steps;
    auto& all = parameters_->all();
    for (size_t i = 0; i < all.size(); ++i) {
      auto gradient = all[i].leaf.grad();
      if (all[i].decay != decay || !gradient.defined()) continue;
      values.push_back(all[i].values);
      gradients.push_back(gradient);
      first.push_back(exp_avg_[i]);
      second.push_back(exp_avg_sq_[i]);
      steps.push_back(at::full({}, static_cast<double>(step), at::TensorOptions(at::kFloat)));
    }
    if (values.empty()) continue;
    const bool wide = values[0].scalar_type() == at::kDouble;
    if (wide && divisor) at::_foreach_mul_(gradients, gradient_scale);
    at::_fused_adamw_(values, gradients, first, second, /*max_exp_avg_sqs=*/{}, steps, lr, config_.beta1,
                      config_.beta2, decay ? config_.weight_decay : 0.0, config_.eps, /*amsgrad=*/false,
                      /*maximize=*/false, wide ? std::nullopt : divisor);
  }
  for (auto& p : parameters_->all()) p.leaf.mutable_grad() = at::Tensor();
  parameters_->publish();
}

double learning_rate(const OptimConfig& config, int64_t step, int64_t steps) {
  if (step <= config.warmup_steps)
    return config.lr * static_cast<double>(step) / static_cast<double>(config.warmup_steps);
  const auto span = static_cast<double>(std::max<int64_t>(steps - config.warmup_steps, 1));
  const double progress = std::min(1.0, static_cast<double>(step - config.warmup_steps) / span);
  return config.min_lr + 0.5 * (config.lr - config.min_lr) * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace hero
