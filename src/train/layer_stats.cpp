#include "train/layer_stats.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

namespace hero {

LayerStats::LayerStats(int64_t layers, int64_t experts, const HistoryLayout& layout)
    : layout_(&layout),
      assigned_(at::zeros({layers, experts}, at::kLong)),
      counts_(at::zeros({layers, experts}, at::kLong)),
      sums_(at::zeros({layers, 6}, at::kDouble)) {}

void LayerStats::add(const std::vector<Routing>& routings) {
  at::NoGradGuard no_grad;
  for (const auto& r : routings) {
    assigned_[r.layer - 1] += r.assigned;
    counts_[r.layer - 1] += r.counts;
    auto row = sums_[r.layer - 1];
    row.slice(0, 0, 5) += r.stats.sum(0, false, at::kDouble);
    row[5] -= (r.probs * r.probs.clamp_min(1e-30).log()).sum(at::kDouble);
  }
  if (!routings.empty()) tokens_ += routings[0].ids.size(0);
}

at::Tensor LayerStats::shares_LE() const { return counts_.to(at::kDouble) / static_cast<double>(tokens_); }

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
    out["dropped"].push_back((assigned_[l - 1] - counts_[l - 1]).sum().item<int64_t>());
    out["rms_hidden"].push_back(mean(0));
    const bool history = !layout_->visible(l).empty();
    out["rms_history"].push_back(history ? json(mean(1)) : json(nullptr));
    out["rho"].push_back(history ? json(mean(2)) : json(nullptr));
    out["history_variance_share"].push_back(history ? json(mean(4) / (mean(3) + mean(4))) : json(nullptr));
  }
  return out;
}

}  // namespace hero
