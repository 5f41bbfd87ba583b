// The Layerwise Recurrent Router (arXiv 2408.06793, Eq. 4 to 6), of PyTorch operators in fp32 (fp64 in fp64
// runs). A layer's history slot is its state h [T, p], rounded to the router's type.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <cmath>

#include "model/random.h"
#include "model/router.h"
#include "model/router_kind.h"

namespace hero {
namespace {

// In the order of RouterKind::weights.
enum Weight : size_t { kGate, kProjection, kInputGates, kStateGates, kInputBias, kStateBias };
constexpr size_t kOwnWeights = 2;

// All values ~ U(-b, b), b = 1/sqrt(inputs), as PyTorch initializes linear layers and GRUs.
std::vector<at::Tensor> add_rmoe_weights(Parameters& parameters, const std::string& prefix, int64_t l,
                                         const Config& config, const HistoryLayout& layout) {
  const auto seen = static_cast<int64_t>(layout.visible(l).size());
  const RouterKind& kind = router_kind(config.router);
  std::vector<at::Tensor> leaves;
  for (const RouterWeight& weight : kind.weights(config, l, seen)) {
    const bool matrix = weight.shape.size() > 1;
    const double bound =
        1.0 / std::sqrt(static_cast<double>(matrix ? weight.shape[1] : config.router.state_size));
    const Init init = [bound](const at::Tensor& w, uint64_t seed, const std::string& name) {
      fill_uniform(w, seed, name, -bound, bound);
    };
    leaves.push_back(parameters.add(prefix + "." + weight.name, weight.shape, init, /*decay=*/matrix,
                                    router_dtype(config)));
  }
  if (seen == 0) return leaves;
  const auto all = kind.weights(config, /*l=*/1, /*seen=*/0);
  for (size_t i = kOwnWeights; i < all.size(); ++i) leaves.push_back(parameters.share("." + all[i].name));
  return leaves;
}

// The preceding layer's state in the type of `like`; zeros in the first layer of a stage.
at::Tensor preceding_state(const Router& router, const RoutingHistory& history, const at::Tensor& like) {
  const int64_t l = router.layer();
  if (router.layout().visible(l).empty())
    return at::zeros({like.size(0), router.config().state_size}, like.options());
  if (history.differentiable()) return history.visible_differentiable(l).front().to(like.scalar_type());
  return history.visible(l, router.config()).value_or(ops::VisibleHistory{}).probs.to(like.scalar_type());
}

at::Tensor statistics(const at::Tensor& x, const at::Tensor& state, const at::Tensor& logits) {
  const at::NoGradGuard no_grad;
  const auto rms = [](const at::Tensor& rows) { return rows.pow(2).mean(1).sqrt(); };
  auto stats = at::zeros({x.size(0), ops::kRouteStats}, logits.options());
  stats.select(1, ops::kRmsHidden).copy_(rms(x));
  stats.select(1, ops::kRmsHistory).copy_(rms(state));
  stats.select(1, ops::kHiddenVariance).copy_(logits.var(1, /*unbiased=*/false));
  return stats;
}

ops::RouteOutput route_rmoe(const Router& router, const at::Tensor& x_TD, RoutingHistory& history) {
  const auto& leaves = router.weights();
  std::array<at::Tensor, kStateBias + 1> w;
  for (size_t i = 0; i < w.size(); ++i) w[i] = ops::widened(leaves[i]);
  const auto x = x_TD.to(leaves[kGate].scalar_type()).to(w[kGate].scalar_type());
  const auto before = preceding_state(router, history, x);
  const auto state = at::gru_cell(at::linear(x, w[kProjection]), before, w[kInputGates], w[kStateGates],
                                  w[kInputBias], w[kStateBias]);
  const auto logits = at::linear(state, w[kGate]);
  const int64_t l = router.layer();
  if (history.differentiable()) {
    history.store_differentiable(l, state);
  } else if (history.slot(l).probs.defined()) {
    // As in ops::route: states that later layers saved for their backward passes stay valid.
    const at::AutoDispatchBelowADInplaceOrView guard;
    history.store(l, state.detach());
  }
  return {logits, logits.softmax(1), statistics(x, before, logits)};
}

}  // namespace

RouterFunctions rmoe_router() { return {"rmoe", add_rmoe_weights, route_rmoe}; }

}  // namespace hero
