#include "model/router.h"

#include <ATen/ATen.h>

#include <cmath>

#include "model/random.h"

namespace hero {
namespace {

// W_O and every history block are sampled from streams of their own and scaled by the layer's bound, so that
// model variants with the same seed share the blocks that they have in common.
Init router_init(int64_t l, int64_t d, const Config& config, const HistoryLayout& layout) {
  const double experts = static_cast<double>(layout.experts());
  const bool zero = config.router.init == "zero";
  // With W_R = 0 the layer computes a baseline's logits, so W_O is initialized as in a baseline.
  const bool history = config.router.has_history() && !zero;
  const double fan_in = static_cast<double>(d) + (history ? static_cast<double>(l - 1) * experts : 0.0);
  const double bound = 1.0 / std::sqrt(fan_in);
  return [=, visible = layout.visible(l)](const at::Tensor& w, uint64_t seed, const std::string& name) {
    const int64_t e = w.size(0);
    fill_uniform(w.slice(1, 0, d), seed, name + "#O", -bound, bound);
    for (size_t m = 0; m < visible.size(); ++m) {
      const int64_t first = d + static_cast<int64_t>(m) * e;
      const auto block = w.slice(1, first, first + e);
      if (zero) {
        block.zero_();
      } else {
        fill_uniform(block, seed, name + "#R" + std::to_string(visible[m]), -bound, bound);
      }
    }
  };
}

}  // namespace

at::ScalarType train_dtype(const Config& config) {
  return config.train.dtype == "bf16"   ? at::kBFloat16
         : config.train.dtype == "fp32" ? at::kFloat
                                        : at::kDouble;
}

at::ScalarType router_dtype(const Config& config) {
  return config.router.dtype == "fp32" && config.train.dtype == "bf16" ? at::kFloat : train_dtype(config);
}

Router::Router(Parameters& parameters, const std::string& prefix, int64_t l, const Config& config,
               const HistoryLayout& layout)
    : l_(l), config_(config.router), layout_(&layout) {
  const int64_t d = config.model.hidden_size, e = layout.experts();
  const auto visible = static_cast<int64_t>(layout.visible(l).size());
  weight_ = parameters.add(prefix + ".gate.weight", {e, d + visible * e}, router_init(l, d, config, layout),
                           /*decay=*/true, router_dtype(config));
}

ops::RouteOutput Router::operator()(const at::Tensor& x_TD, RoutingHistory& history) const {
  const auto x = x_TD.to(weight_.scalar_type());
  if (!history.differentiable())
    return ops::route(x, weight_, history.visible(l_, config_), history.slot(l_));
  auto out = ops::route_through(x, weight_, history.visible_differentiable(l_), layout_->depth_factor(l_),
                                config_.eps, config_.scale);
  history.store_differentiable(l_, out.probs);
  return out;
}

}  // namespace hero
