#include "train/layer_stats.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace hero {
namespace {

template <int64_t column>
double token_mean(const LayerTotals& layer) {
  return layer.mean(column);
}

double max_expert_share(const LayerTotals& layer) { return layer.shares_E.max().item<double>(); }

double max_over_mean(const LayerTotals& layer) {
  const double received = layer.shares_E.sum().item<double>();
  const auto experts = static_cast<double>(layer.shares_E.numel());
  return received > 0 ? max_expert_share(layer) * experts / received : 0.0;
}

double dropped(const LayerTotals& layer) { return (layer.assigned_E - layer.counts_E).sum().item<double>(); }

// Both variances are means over tokens before they are divided.
double history_variance_share(const LayerTotals& layer) {
  const double hidden = layer.mean(ops::kHiddenVariance), history = layer.mean(ops::kHistoryVariance);
  return history / (hidden + history);
}

// The mean of a statistic of the router, under its name.
template <ops::RouteStat column>
constexpr LayerMetric mean_of(bool of_history) {
  return {.key = ops::kRouteStatNames[column], .reduce = token_mean<column>, .of_history = of_history};
}

// LAYER_SERIES in python/hero_moe/report/run_files.py lists the same keys.
constexpr LayerMetric kLayerMetrics[] = {
    {.key = "max_expert_share", .reduce = max_expert_share},
    {.key = "max_over_mean", .reduce = max_over_mean},
    {.key = "entropy", .reduce = token_mean<kEntropy>},
    {.key = "dropped", .reduce = dropped, .integer = true},
    mean_of<ops::kRmsHidden>(/*of_history=*/false),
    mean_of<ops::kRmsHistory>(/*of_history=*/true),
    mean_of<ops::kRho>(/*of_history=*/true),
    {.key = "history_variance_share", .reduce = history_variance_share, .of_history = true},
};

}  // namespace

double LayerTotals::mean(int64_t column) const { return sums[column].item<double>() / tokens; }

std::optional<double> LayerMetric::value(const LayerTotals& layer) const {
  if (of_history && !layer.sees_history) return std::nullopt;
  return reduce(layer);
}

std::string LayerMetric::tag(int64_t l) const {
  return "layers_" + std::string(key) + "/" + std::to_string(l);
}

std::span<const LayerMetric> layer_metrics() { return kLayerMetrics; }

int64_t LayerStats::size(const HistoryLayout& layout) {
  return layout.layers() * (2 * layout.experts() + kEndOfLayerSums);
}

LayerStats::LayerStats(const HistoryLayout& layout, const at::Tensor& sums) : layout_(&layout) {
  const int64_t layers = layout.layers(), experts = layout.experts(), n = layers * experts;
  assigned_ = sums.slice(0, 0, n).view({layers, experts});
  counts_ = sums.slice(0, n, 2 * n).view({layers, experts});
  sums_ = sums.slice(0, 2 * n).view({layers, kEndOfLayerSums});
}

LayerStats LayerStats::with_sums(const at::Tensor& sums) const {
  LayerStats other(*layout_, sums);
  other.tokens_ = tokens_;
  return other;
}

void LayerStats::add(const std::vector<Routing>& routings) {
  at::NoGradGuard no_grad;
  for (const auto& r : routings) {
    assigned_[r.layer - 1] += r.assigned;
    counts_[r.layer - 1] += r.counts;
    auto row = sums_[r.layer - 1];
    row.narrow(0, 0, ops::kRouteStats) += r.stats.sum(0, false, at::kDouble);
    row[kEntropy] -= (r.probs * r.probs.clamp_min(1e-30).log()).sum(at::kDouble);
  }
}

at::Tensor LayerStats::shares_LE() const { return counts_ / static_cast<double>(tokens_); }

double LayerStats::max_share() const { return shares_LE().max().item<double>(); }

std::vector<LayerTotals> LayerStats::totals() const {
  const auto shares = shares_LE();
  std::vector<LayerTotals> out;
  for (int64_t l = 0; l < layout_->layers(); ++l) {
    out.push_back({.tokens = static_cast<double>(tokens_),
                   .assigned_E = assigned_[l],
                   .counts_E = counts_[l],
                   .shares_E = shares[l],
                   .sums = sums_[l],
                   .sees_history = !layout_->visible(l + 1).empty()});
  }
  return out;
}

}  // namespace hero
