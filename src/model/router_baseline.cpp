// The baseline router: Z = x W^T with W [E, D] ~ U(-b, b), b = 1/sqrt(D).
#include <ATen/ATen.h>

#include <cmath>

#include "model/random.h"
#include "model/router.h"
#include "model/router_kind.h"

namespace hero {
namespace {

// The stream "#O" is the one of HERO's W_O, so that both have the same values.
std::vector<at::Tensor> add_baseline_weights(Parameters& parameters, const std::string& prefix, int64_t l,
                                             const Config& config, const HistoryLayout&) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(config.model.hidden_size));
  const Init init = [bound](const at::Tensor& w, uint64_t seed, const std::string& name) {
    fill_uniform(w, seed, name + "#O", -bound, bound);
  };
  const RouterWeight gate = router_kind(config.router).weights(config, l, /*seen=*/0).front();
  return {parameters.add(prefix + "." + gate.name, gate.shape, init, /*decay=*/true, router_dtype(config))};
}

ops::RouteOutput route_baseline(const Router& router, const at::Tensor& x_TD, RoutingHistory&) {
  const auto& w = router.weight();
  return ops::route(x_TD.to(w.scalar_type()), w, std::nullopt, {});
}

}  // namespace

RouterFunctions baseline_router() { return {"baseline", add_baseline_weights, route_baseline}; }

}  // namespace hero
