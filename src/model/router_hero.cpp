// The HERO router: Algorithm 1 of the paper (weights) and steps 1 to 6 of Algorithm 2.
#include <ATen/ATen.h>

#include <cmath>

#include "model/random.h"
#include "model/router.h"
#include "model/router_kind.h"

namespace hero {
namespace {

// W [E, D+M*E] ~ U(-b, b), b = 1/sqrt(D + (l-1)E) for any stages.
// W_O and every history block are sampled from streams of their own and scaled by the layer's bound, so that
// model variants with the same seed share the blocks that they have in common.
Init router_init(int64_t l, int64_t d, const Config& config, const HistoryLayout& layout) {
  const double experts = static_cast<double>(layout.experts());
  const bool zero = config.router.init == RouterInit::kZero;
  // With W_R = 0 the layer computes a baseline's logits, so W_O is initialized as in a baseline.
  const double fan_in = static_cast<double>(d) + (zero ? 0.0 : static_cast<double>(l - 1) * experts);
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

std::vector<at::Tensor> add_hero_weights(Parameters& parameters, const std::string& prefix, int64_t l,
                                         const Config& config, const HistoryLayout& layout) {
  const auto seen = static_cast<int64_t>(layout.visible(l).size());
  const RouterWeight gate = router_kind(config.router).weights(config, l, seen).front();
  const auto leaf = parameters.add(prefix + "." + gate.name, gate.shape,
                                   router_init(l, config.model.hidden_size, config, layout),
                                   /*decay=*/true, router_dtype(config));
  parameters.mark_history_columns(gate.history_columns);
  return {leaf};
}

ops::RouteOutput route_hero(const Router& router, const at::Tensor& x_TD, RoutingHistory& history) {
  const auto& w = router.weight();
  const RouterConfig& config = router.config();
  const int64_t l = router.layer();
  const auto x = x_TD.to(w.scalar_type());
  if (!history.differentiable()) return ops::route(x, w, history.visible(l, config), history.slot(l));
  auto out = ops::route_through(x, w, history.visible_differentiable(l), router.layout().depth_factor(l),
                                config.eps, config.scale);
  history.store_differentiable(l, out.probs);
  return out;
}

}  // namespace

RouterFunctions hero_router() { return {"hero", add_hero_weights, route_hero}; }

}  // namespace hero
