#include "train/layer_stats.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

namespace hero {

namespace {

constexpr int64_t kColumns = 6;

}  // namespace

int64_t LayerStats::size(const HistoryLayout& layout) {
  return layout.layers() * (2 * layout.experts() + kColumns);
}

LayerStats::LayerStats(const HistoryLayout& layout, const at::Tensor& sums) : layout_(&layout) {
  const int64_t layers = layout.layers(), experts = layout.experts(), n = layers * experts;
  assigned_ = sums.slice(0, 0, n).view({layers, experts});
  counts_ = sums.slice(0, n, 2 * n).view({layers, experts});
  sums_ = sums.slice(0, 2 * n).view({layers, kColumns});
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
    row.slice(0, 0, 5) += r.stats.sum(0, false, at::kDouble);
    row[5] -= (r.probs * r.probs.clamp_min(1e-30).log()).sum(at::kDouble);
  }
}

at::Tensor LayerStats::shares_LE() const { return counts_ / static_cast<double>(tokens_); }

double LayerStats::max_share() const { return shares_LE().max().item<double>(); }

nlohmann::ordered_json LayerStats::json() const {
  using json = nlohmann::ordered_json;
  const char* names[] = {"max_expert_share", "max_over_mean", "entropy", "dropped",
                         "rms_hidden",       "rms_history",   "rho",     "history_variance_share"};
  json out;
  for (const char* name : names) out[name] = json::array();
  const auto shares = shares_LE();
  const auto tokens = static_cast<double>(tokens_);
  for (int64_t l = 1; l <= layout_->layers(); ++l) {
    const auto row = sums_[l - 1];
    const auto mean = [&](int64_t column) { return row[column].item<double>() / tokens; };
    const double received = shares[l - 1].sum().item<double>(), highest = shares[l - 1].max().item<double>();
    out["max_expert_share"].push_back(highest);
    out["max_over_mean"].push_back(received > 0 ? highest * static_cast<double>(layout_->experts()) / received
                                                : 0.0);
    out["entropy"].push_back(mean(5));
    const double dropped = (assigned_[l - 1] - counts_[l - 1]).sum().item<double>();
    out["dropped"].push_back(static_cast<int64_t>(dropped));
    out["rms_hidden"].push_back(mean(0));
    const bool history = !layout_->visible(l).empty();
    out["rms_history"].push_back(history ? json(mean(1)) : json(nullptr));
    out["rho"].push_back(history ? json(mean(2)) : json(nullptr));
    out["history_variance_share"].push_back(history ? json(mean(4) / (mean(3) + mean(4))) : json(nullptr));
  }
  return out;
}

}  // namespace hero
