#include "train/norms.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <map>

#include "config/mtp_layers.h"
#include "ops/ops.h"

namespace hero {
namespace {

constexpr NormMetric kNormMetrics[] = {
    {"grad_norm", [](const double* sums) { return std::sqrt(sums[kGradientSquares]); }},
    {"update_ratio",
     [](const double* sums) { return std::sqrt(sums[kUpdateSquares] / sums[kWeightSquares]); }},
    {"weight_rms", [](const double* sums) { return std::sqrt(sums[kWeightSquares] / sums[kWeights]); }},
};
constexpr const char* kLogitKeys[] = {"max_attention_logit", "max_router_logit"};

// Adds the sums of squares of `tensor(shard index)`, flattened like the shards, to the column.
template <typename Select>
void add_squares(const Parameters& parameters, const std::vector<ParameterShard>& shards, NormSum column,
                 const at::Tensor& sums, Select&& tensor) {
  std::map<std::pair<int64_t, Component>, std::vector<at::Tensor>> pieces;
  for (size_t i = 0; i < shards.size(); ++i) {
    const at::Tensor values = tensor(i);
    if (!values.defined()) continue;
    const auto& shard = shards[i];
    const auto& parameter = parameters.all()[shard.parameter];
    for (const auto& range : component_ranges(parameter, shard.begin, shard.end)) {
      const bool in_layer = kComponents[static_cast<size_t>(range.component)].per_layer;
      const int64_t row = in_layer ? decoder_layer_of(parameter.name) : sums.size(0) - 1;
      pieces[{row, range.component}].push_back(
          values.slice(0, range.begin - shard.begin, range.end - shard.begin));
    }
  }
  for (const auto& [key, tensors] : pieces) {
    const auto cell = sums[key.first][static_cast<int64_t>(key.second)];
    cell[column] += ops::sum_of_squares(tensors);
    if (column != kWeightSquares) continue;
    for (const auto& values : tensors) cell[kWeights] += static_cast<double>(values.numel());
  }
}

}  // namespace

std::span<const NormMetric> norm_metrics() { return kNormMetrics; }

void Norms::for_each(const std::function<void(const std::string&, const std::string&, int64_t,
                                              std::optional<double>)>& visit) const {
  const int64_t layers = max_logits.size(1);
  const auto* values = sums.const_data_ptr<double>();
  for (const NormMetric& metric : norm_metrics()) {
    for (size_t c = 0; c < kComponents.size(); ++c) {
      const bool per_layer = kComponents[c].per_layer;
      for (int64_t row = per_layer ? 0 : layers; row < (per_layer ? layers : layers + 1); ++row) {
        const auto* cell =
            values + (row * std::ssize(kComponents) + static_cast<int64_t>(c)) * kEndOfNormSums;
        const auto value = cell[kWeights] > 0 ? std::optional(metric.reduce(cell)) : std::nullopt;
        visit(metric.key, kComponents[c].key, per_layer ? row : -1, value);
      }
    }
  }
  for (int64_t kind = 0; kind < 2; ++kind) {
    for (int64_t i = 0; i < layers; ++i) {
      const double logit = max_logits[kind][i].item<double>();
      visit(kLogitKeys[kind], "", i, logit == -INFINITY ? std::nullopt : std::optional(logit));
    }
  }
}

NormStats::NormStats(const Transformer& model, const Optimizer& optimizer, const World* world)
    : model_(model), optimizer_(optimizer), world_(world) {
  const auto numbers = moe_layer_numbers_with_modules(model.config().model);
  const auto layers = static_cast<int64_t>(numbers.size());
  for (int64_t i = 0; i < layers; ++i) {
    if (numbers[i] > 0) decoder_layer_of_moe_.push_back(i);
  }
  const auto options = at::TensorOptions(model.device()).dtype(at::kDouble);
  sums_ = at::zeros({layers + 1, std::ssize(kComponents), kEndOfNormSums}, options);
  max_logits_ = at::full({2, layers}, -INFINITY, options);
}

void NormStats::add(const std::vector<Routing>& routings) {
  const at::NoGradGuard no_grad;
  for (const auto& routing : routings) {
    const auto slot = max_logits_[1][decoder_layer_of_moe_[routing.layer - 1]];
    slot.copy_(at::maximum(slot, routing.logits.max().to(at::kDouble)));
  }
}

void NormStats::before_update() {
  const at::NoGradGuard no_grad;
  const auto& parameters = model_.parameters();
  const auto& shards = optimizer_.shards();
  for (const auto& shard : shards) values_.push_back(shard.values.clone());
  add_squares(parameters, shards, kGradientSquares, sums_,
              [&](size_t i) { return optimizer_.gradient(shards[i]); });
  add_squares(parameters, shards, kWeightSquares, sums_, [&](size_t i) { return values_[i]; });
}

Norms NormStats::after_update() {
  const at::NoGradGuard no_grad;
  const auto& shards = optimizer_.shards();
  for (size_t i = 0; i < shards.size(); ++i) values_[i].sub_(shards[i].values);
  add_squares(model_.parameters(), shards, kUpdateSquares, sums_, [&](size_t i) { return values_[i]; });
  if (world_) {
    world_->all().all_reduce(sums_).wait();
    const auto all = at::empty({world_->mesh().size(), max_logits_.numel()}, max_logits_.options());
    world_->all().all_gather(all, max_logits_).wait();
    max_logits_ = std::get<0>(all.max(0)).view(max_logits_.sizes());
  }
  return {sums_.cpu(), max_logits_.cpu()};
}

}  // namespace hero
