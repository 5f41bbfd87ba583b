#include "model/history.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace hero {

HistoryLayout::HistoryLayout(int64_t layers, int64_t experts, const RouterConfig& router)
    : experts_(experts),
      stage_of_(stage_of_layers(layers, router)),
      visible_(layers),
      group_(layers, 0),
      index_(layers, 0) {
  const bool hero = router.kind == "hero";
  const int64_t groups = router.history == "global" ? 1 : stage_of_.back() + 1;
  std::vector<int64_t> members(groups, 0);
  for (int64_t l = 1; l <= layers; ++l) {
    if (hero) visible_[l - 1] = visible_layers(l, stage_of_, router);
    group_[l - 1] = groups == 1 ? 0 : stage_of_[l - 1];
    index_[l - 1] = members[group_[l - 1]]++;
  }
  for (const int64_t m : members) slots_.push_back(hero ? std::max<int64_t>(m - 1, 0) : 0);
}

double HistoryLayout::depth_factor(int64_t l) const {
  const auto seen = static_cast<double>(visible(l).size());
  return seen ? std::sqrt(static_cast<double>(l - 1) / seen) : 1.0;
}

RoutingHistory::RoutingHistory(const HistoryLayout& layout, int64_t tokens, at::ScalarType dtype, bool live,
                               at::Device device)
    : layout_(&layout), live_(live), live_probs_(live ? layout.layers() : 0) {
  const auto acc = dtype == at::kDouble ? at::kDouble : at::kFloat;
  for (const int64_t slots : live ? std::vector<int64_t>() : layout.slots_) {
    probs_.push_back(at::empty({tokens, slots * layout.experts()}, at::TensorOptions(device).dtype(dtype)));
    sumsq_.push_back(at::empty({tokens, slots}, at::TensorOptions(device).dtype(acc)));
  }
}

std::optional<ops::VisibleHistory> RoutingHistory::visible(int64_t l, const RouterConfig& router) const {
  const auto seen = static_cast<int64_t>(layout_->visible(l).size());
  if (seen == 0) return std::nullopt;
  const int64_t group = layout_->group_[l - 1], end = layout_->index_[l - 1], e = layout_->experts();
  return ops::VisibleHistory{.probs = probs_[group].slice(1, (end - seen) * e, end * e),
                             .sumsq = sumsq_[group].slice(1, end - seen, end),
                             .depth_factor = layout_->depth_factor(l),
                             .eps = router.eps,
                             .scale = router.scale};
}

ops::HistorySlot RoutingHistory::slot(int64_t l) const {
  const int64_t group = layout_->group_[l - 1], i = layout_->index_[l - 1], e = layout_->experts();
  if (i >= layout_->slots_[group]) return {};
  return {probs_[group].slice(1, i * e, (i + 1) * e), sumsq_[group].select(1, i)};
}

std::vector<at::Tensor> RoutingHistory::visible_live(int64_t l) const {
  std::vector<at::Tensor> seen;
  for (const int64_t j : layout_->visible(l)) seen.push_back(live_probs_[j - 1]);
  return seen;
}

int64_t RoutingHistory::bytes() const {
  int64_t n = 0;
  for (size_t g = 0; g < probs_.size(); ++g)
    n += static_cast<int64_t>(probs_[g].nbytes() + sumsq_[g].nbytes());
  return n;
}

}  // namespace hero
