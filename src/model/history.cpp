#include "model/history.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "model/router_kind.h"

namespace hero {

HistoryLayout::HistoryLayout(int64_t main_layers, int64_t experts, const RouterConfig& router,
                             int64_t modules)
    : experts_(experts),
      width_(router_kind(router).history_width(experts, router)),
      stage_of_(stage_of_layers(main_layers, router)) {
  stage_of_.resize(stage_of_.size() + static_cast<size_t>(modules), stage_of_.back());
  const int64_t layers = this->layers();
  visible_.resize(layers);
  group_.resize(layers, 0);
  index_.resize(layers, 0);
  const RouterKind& kind = router_kind(router);
  const int64_t groups = router.has_global_history() ? 1 : stage_of_.back() + 1;
  std::vector<int64_t> members(groups, 0);
  for (int64_t l = 1; l <= layers; ++l) {
    visible_[l - 1] = kind.visible(l, stage_of_, router);
    group_[l - 1] = groups == 1 ? 0 : stage_of_[l - 1];
    index_[l - 1] = members[group_[l - 1]]++;
  }
  for (const int64_t m : members) slots_.push_back(width_ > 0 ? std::max<int64_t>(m - 1, 0) : 0);
  needed_from_.resize(layers + 1);
  std::set<int64_t> needed;
  for (int64_t l = layers; l >= 1; --l) {
    needed.insert(visible_[l - 1].begin(), visible_[l - 1].end());
    needed.erase(l);
    needed_from_[l - 1].assign(needed.begin(), needed.end());
  }
}

bool HistoryLayout::has_visible_layers() const {
  return std::ranges::any_of(visible_, [](const auto& layers) { return !layers.empty(); });
}

std::vector<int64_t> HistoryLayout::stored_layers(int64_t first, int64_t last) const {
  auto stored = needed_from(first);
  for (int64_t l = first; l < last; ++l) stored.push_back(l);
  return stored;
}

std::vector<HistoryLayout::SlotRange> HistoryLayout::slot_ranges(const std::vector<int64_t>& stored) const {
  std::vector<SlotRange> ranges(slots_.size());
  for (const int64_t l : stored) {
    SlotRange& range = ranges[group_[l - 1]];
    if (range.end == 0) range.begin = index_[l - 1];
    range.end = std::min(index_[l - 1] + 1, slots_[group_[l - 1]]);
  }
  return ranges;
}

int64_t HistoryLayout::slots_of(int64_t first, int64_t last) const {
  int64_t slots = 0;
  for (const SlotRange& range : slot_ranges(stored_layers(first, last))) slots += range.size();
  return slots;
}

double HistoryLayout::depth_factor(int64_t l) const {
  const auto count = static_cast<double>(visible(l).size());
  return count ? std::sqrt(static_cast<double>(l - 1) / count) : 1.0;
}

RoutingHistory::RoutingHistory(const HistoryLayout& layout, int64_t tokens, at::ScalarType dtype,
                               bool differentiable, at::Device device)
    : RoutingHistory(layout, 1, layout.layers() + 1, tokens, dtype, differentiable, device) {}

RoutingHistory::RoutingHistory(const HistoryLayout& layout, int64_t first, int64_t last, int64_t tokens,
                               at::ScalarType dtype, bool differentiable, at::Device device)
    : layout_(&layout),
      tokens_(tokens),
      dtype_(dtype),
      differentiable_(differentiable),
      views_(differentiable ? 0 : layout.layers()),
      differentiable_probs_(differentiable ? layout.layers() : 0) {
  if (differentiable) return;
  const auto stored = layout.stored_layers(first, last);
  const auto ranges = layout.slot_ranges(stored);
  const auto acc = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t w = layout.width();
  std::vector<at::Tensor> probs, sumsq;  // per group: [T, slots*E], [T, slots]
  for (const auto& range : ranges) {
    probs.push_back(at::empty({tokens, range.size() * w}, at::TensorOptions(device).dtype(dtype)));
    sumsq.push_back(at::empty({tokens, range.size()}, at::TensorOptions(device).dtype(acc)));
  }
  for (const int64_t l : stored) {
    const int64_t group = layout.group_[l - 1], i = layout.index_[l - 1] - ranges[group].begin;
    Views& views = views_[l - 1];
    if (layout.index_[l - 1] < layout.slots_[group])
      views.slot = {probs[group].slice(1, i * w, (i + 1) * w), sumsq[group].select(1, i)};
    const auto count = static_cast<int64_t>(layout.visible(l).size());
    if (l < first || count == 0) continue;
    views.visible_probs = probs[group].slice(1, (i - count) * w, i * w);
    views.visible_sumsq = sumsq[group].slice(1, i - count, i);
  }
}

std::optional<ops::VisibleHistory> RoutingHistory::visible(int64_t l, const RouterConfig& router) const {
  if (layout_->visible(l).empty()) return std::nullopt;
  return ops::VisibleHistory{.probs = views_[l - 1].visible_probs,
                             .sumsq = views_[l - 1].visible_sumsq,
                             .depth_factor = layout_->depth_factor(l),
                             .eps = router.eps,
                             .scale = router.scale};
}

ops::HistorySlot RoutingHistory::slot(int64_t l) const { return views_[l - 1].slot; }

void RoutingHistory::store(int64_t l, const at::Tensor& probs) {
  const auto target = slot(l);
  target.probs.copy_(probs);
  target.sumsq.copy_(target.probs.to(target.sumsq.scalar_type()).pow(2).sum(1));
}

void RoutingHistory::store_differentiable(int64_t l, const at::Tensor& probs) {
  differentiable_probs_[l - 1] = ops::round_straight_through(probs, dtype_);
}

std::vector<at::Tensor> RoutingHistory::visible_differentiable(int64_t l) const {
  std::vector<at::Tensor> probs;
  for (const int64_t j : layout_->visible(l)) probs.push_back(differentiable_probs_[j - 1]);
  return probs;
}

}  // namespace hero
