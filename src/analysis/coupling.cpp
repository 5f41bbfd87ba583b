#include "analysis/coupling.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>

namespace hero {

std::vector<LayerPair> visible_pairs(const HistoryLayout& layout) {
  std::vector<LayerPair> pairs;
  for (int64_t l = 1; l <= layout.layers(); ++l) {
    for (const int64_t p : layout.visible(l)) pairs.push_back({l, p});
  }
  return pairs;
}

std::optional<LayerPair> default_pair(const HistoryLayout& layout) {
  std::vector<LayerPair> adjacent;
  for (const auto& pair : visible_pairs(layout)) {
    if (pair.layer != pair.predecessor + 1) continue;
    if (pair.layer == 10) return pair;
    adjacent.push_back(pair);
  }
  if (adjacent.empty()) return std::nullopt;
  return adjacent[(adjacent.size() - 1) / 2];
}

double percentile(std::vector<double>& values, double percent) {
  const double place = static_cast<double>(values.size() - 1) * (percent / 100.0);
  const auto below = static_cast<std::ptrdiff_t>(std::floor(place));
  const double part = place - static_cast<double>(below);
  const auto middle = values.begin() + below;
  std::nth_element(values.begin(), middle, values.end());
  const double a = *middle;
  const double b = middle + 1 == values.end() ? a : *std::min_element(middle + 1, values.end());
  // Interpolates from the nearer end, like numpy.
  return part < 0.5 ? a + (b - a) * part : b - (b - a) * (1 - part);
}

double effective_rank(const at::Tensor& matrix) {
  const auto values = at::linalg_svdvals(matrix.to(at::kDouble));
  const auto sum = values.sum();
  if (sum.item<double>() == 0) return 0;
  const auto shares = values / sum;
  return std::exp(-at::special_xlogy(shares, shares).sum().item<double>());
}

namespace {

using BlockOf = std::function<at::Tensor(const LayerPair&)>;

// Blocks are [E, E] fp64; at least one pair.
StrongCoupling strong_coupling(const std::vector<LayerPair>& pairs, const BlockOf& block_of) {
  std::vector<double> magnitudes;
  for (const auto& pair : pairs) {
    const auto sizes = block_of(pair).abs().contiguous();
    const auto* first = sizes.const_data_ptr<double>();
    magnitudes.insert(magnitudes.end(), first, first + sizes.numel());
  }
  StrongCoupling out{.tau = percentile(magnitudes, 90), .distances = {}};
  std::map<int64_t, std::array<int64_t, 3>> entries;
  for (const auto& pair : pairs) {
    const auto block = block_of(pair);
    auto& at_distance = entries[pair.layer - pair.predecessor];
    at_distance[0] += block.lt(-out.tau).sum().item<int64_t>();
    at_distance[1] += block.gt(out.tau).sum().item<int64_t>();
    at_distance[2] += block.numel();
  }
  for (const auto& [distance, n] : entries) {
    const auto all = static_cast<double>(n[2]);
    out.distances.push_back(
        {distance, 100.0 * static_cast<double>(n[0]) / all, 100.0 * static_cast<double>(n[1]) / all, n[2]});
  }
  return out;
}

BlockStrength strength(const at::Tensor& block) {
  return {.norm = block.norm().item<double>(), .effective_rank = effective_rank(block)};
}

BlockStatistics statistics(const HistoryLayout& layout, const std::vector<PairStrength>& pairs,
                           BlockStrength PairStrength::* kind, const BlockOf& block_of) {
  BlockStatistics out{.dependency_LL = at::zeros({layout.layers(), layout.layers()}, at::kDouble),
                      .strong = std::nullopt};
  for (const auto& one : pairs)
    out.dependency_LL[one.pair.layer - 1][one.pair.predecessor - 1] = (one.*kind).norm * one.depth_factor;
  if (!pairs.empty()) out.strong = strong_coupling(visible_pairs(layout), block_of);
  return out;
}

}  // namespace

at::Tensor centered_block(const at::Tensor& block) {
  const auto columns = block - block.mean(0, /*keepdim=*/true);
  return columns - columns.mean(1, /*keepdim=*/true);
}

at::Tensor expert_bias(const RouterHistory& history, int64_t l) {
  auto bias = at::zeros({history.layout().experts()}, at::kDouble);
  for (const int64_t p : history.layout().visible(l)) bias += history.block(l, p).mean(1);
  return bias - bias.mean();
}

Coupling coupling(const RouterHistory& history) {
  const auto& layout = history.layout();
  const auto raw = [&](const LayerPair& pair) { return history.block(pair.layer, pair.predecessor); };
  const auto centered = [&](const LayerPair& pair) { return centered_block(raw(pair)); };
  Coupling out;
  for (const auto& pair : visible_pairs(layout)) {
    out.pairs.push_back({.pair = pair,
                         .depth_factor = history.depth_factor(pair.layer),
                         .raw = strength(raw(pair).contiguous()),
                         .centered = strength(centered(pair))});
  }
  out.raw = statistics(layout, out.pairs, &PairStrength::raw, raw);
  out.centered = statistics(layout, out.pairs, &PairStrength::centered, centered);
  out.expert_bias_LE = at::zeros({layout.layers(), layout.experts()}, at::kDouble);
  for (int64_t l = 1; l <= layout.layers(); ++l) {
    if (!layout.visible(l).empty()) out.expert_bias_LE[l - 1] = expert_bias(history, l);
  }
  return out;
}

}  // namespace hero
