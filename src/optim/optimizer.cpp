#include "optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "ops/ops.h"
#include "optim/muon.h"

namespace hero {

// Scalars on the gradients' device.
struct Optimizer::Clipping {
  std::optional<at::Tensor> scale;  // fp64 factor of the gradients
  std::optional<at::Tensor> skip;   // fp32, 1: skip the update

  // On the CPU the norm can be read, so gradients are scaled only if necessary. None if the update is
  // skipped.
  static std::optional<Clipping> on_cpu(double norm, double limit) {
    if (!std::isfinite(norm)) return std::nullopt;
    if (limit == 0 || norm <= limit) return Clipping{};
    return Clipping{.scale = at::full({}, limit / norm, at::TensorOptions(at::kDouble)), .skip = {}};
  }
  static Clipping on_device(const at::Tensor& norm, double limit) {
    const auto finite = norm.isfinite();
    const auto excess = limit > 0 ? (norm / limit).clamp_min(1.0) : at::ones_like(norm);
    return {.scale = at::where(finite, excess.reciprocal(), 1.0),
            .skip = finite.logical_not().to(at::kFloat)};
  }
};

Optimizer::Optimizer(Parameters& parameters, const OptimConfig& config)
    : Optimizer(parameters, config, StateStorage(config.offload_folder, parameters.device()), nullptr) {}

Optimizer::Optimizer(Parameters& parameters, const OptimConfig& config, const Group& data,
                     const Group& replica)
    : Optimizer(parameters, config, StateStorage(config.offload_folder, parameters.device()), data, replica) {
}

Optimizer::Optimizer(Parameters& parameters, const OptimConfig& config, const StateStorage& storage,
                     const Group& data, const Group& replica)
    : Optimizer(parameters, config, storage,
                std::make_unique<Buckets>(parameters, data, replica, storage,
                                          [&](const Parameter& p) { return uses_muon(config, p); })) {}

Optimizer::Optimizer(Parameters& parameters, const OptimConfig& config, const StateStorage& storage,
                     std::unique_ptr<Buckets> buckets)
    : parameters_(&parameters),
      config_(config),
      step_(at::zeros({}, at::TensorOptions(parameters.device()).dtype(at::kFloat))),
      buckets_(std::move(buckets)) {
  if (buckets_) shards_ = buckets_->shards();
  auto& all = parameters.all();
  for (size_t i = 0; i < all.size(); ++i) {
    if (buckets_ && buckets_->contains(i)) continue;
    const bool separate = all[i].leaf.scalar_type() != all[i].values.scalar_type();
    // Replicated parameters without a bucket (frozen ones) belong to the first rank.
    if (buckets_ && !buckets_->is_first_rank_of(i)) {
      if (separate) all[i].values = at::Tensor();
      continue;
    }
    if (storage.in_files() && separate) all[i].values = storage.copy_of(all[i].values);
    shards_.push_back(
        {.parameter = i, .begin = 0, .end = all[i].values.numel(), .values = all[i].values.view({-1})});
  }
  for (auto& shard : shards_) {
    const Parameter& parameter = all[shard.parameter];
    if (!parameter.leaf.requires_grad()) continue;
    shard.exp_avg = storage.zeros_like(shard.values);
    if (!uses_muon(config, parameter)) shard.exp_avg_sq = storage.zeros_like(shard.values);
  }
  adamw_ = adamw_groups(config, parameters, shards_);
  muon_ = muon_batches(config, parameters, shards_);
}

at::Tensor Optimizer::gradient(const ParameterShard& shard) const {
  if (buckets_ && buckets_->contains(shard.parameter)) return buckets_->gradient(shard);
  const auto& gradient = parameters_->all()[shard.parameter].leaf.grad();
  return gradient.defined() ? gradient.view({-1}) : at::Tensor();
}

at::Tensor Optimizer::squared_gradient_norm() const {
  std::vector<at::Tensor> gradients;
  for (const auto& shard : shards_) {
    if (auto g = gradient(shard); g.defined()) gradients.push_back(std::move(g));
  }
  if (gradients.empty()) return at::zeros({}, step_.options().dtype(at::kDouble));
  return ops::sum_of_squares(gradients);
}

std::string Optimizer::non_finite_gradient() const {
  for (const auto& shard : shards_) {
    const auto g = gradient(shard);
    if (g.defined() && !g.isfinite().all().item<bool>()) return parameters_->all()[shard.parameter].name;
  }
  return "";
}

at::Tensor Optimizer::separate_leaf(const ParameterShard& shard) const {
  const auto& leaf = parameters_->all()[shard.parameter].leaf;
  const bool gathered = buckets_ && buckets_->contains(shard.parameter);
  if (gathered || leaf.scalar_type() == shard.values.scalar_type()) return {};
  return leaf.detach().view({-1});
}

void Optimizer::step(int64_t step, double lr, const at::Tensor& norm) {
  at::NoGradGuard no_grad;
  const auto clipping = norm.is_cpu() ? Clipping::on_cpu(norm.item<double>(), config_.clip_norm)
                                      : Clipping::on_device(norm, config_.clip_norm);
  if (!clipping) return;
  step_.fill_(static_cast<double>(step));
  for (const auto& group : adamw_) step_adamw(group, lr, *clipping);
  for (const auto& batch : muon_) step_muon(batch, lr, *clipping);
  if (buckets_) buckets_->all_gather_values();
}

void Optimizer::step_adamw(const AdamWGroup& group, double lr, const Clipping& clipping) {
  std::vector<at::Tensor> values, gradients, first, second, leaves;
  for (const ShardRange& range : group.ranges) {
    const auto& shard = shards_[range.shard];
    const auto g = gradient(shard);
    if (!g.defined()) continue;
    const auto select = [&](const at::Tensor& flat) { return flat.slice(0, range.begin, range.end); };
    values.push_back(select(shard.values));
    gradients.push_back(select(g));
    first.push_back(select(shard.exp_avg));
    second.push_back(select(shard.exp_avg_sq));
    const auto leaf = separate_leaf(shard);
    leaves.push_back(leaf.defined() ? select(leaf) : values.back());
  }
  ops::adamw_step(values, gradients, first, second, leaves, step_,
                  {.lr = lr * group.rates.lr,
                   .beta1 = config_.beta1,
                   .beta2 = config_.beta2,
                   .weight_decay = group.rates.weight_decay,
                   .eps = config_.eps},
                  clipping.scale, clipping.skip);
}

void Optimizer::step_muon(const MuonBatch& batch, double lr, const Clipping& clipping) {
  const auto& shard = shards_[batch.shard];
  const auto g = gradient(shard), leaf = separate_leaf(shard);
  if (!g.defined()) return;
  muon_step(batch.view_of(shard.values), batch.view_of(g), batch.view_of(shard.exp_avg),
            leaf.defined() ? batch.view_of(leaf) : at::Tensor(),
            {.lr = lr * batch.rates.lr,
             .momentum = config_.muon_momentum,
             .weight_decay = batch.rates.weight_decay},
            clipping.scale, clipping.skip);
}

void Optimizer::zero_grad(bool keep) {
  std::vector<at::Tensor> kept;
  for (auto& p : parameters_->all()) {
    auto& gradient = p.leaf.mutable_grad();
    if (!keep) gradient = at::Tensor();
    if (gradient.defined()) kept.push_back(gradient);
  }
  if (!kept.empty()) at::_foreach_zero_(kept);
}

}  // namespace hero
