// The router: Z = x W_O^T + rho * (H W_R^T) per token (Eq. of Z^(l) and Eq. (rou) of the HERO-MoE paper). The
// history is read in place, never copied: the two column ranges of W multiply x and H in separate GEMMs, W_O
// first, and rho scales the rows of the second result. GEMMs accumulate in fp32; logits, softmax, RMS and rho
// are fp32 (fp64 in fp64 runs). H and rho get no gradient: dW_R = (rho * dZ)^T H.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {

std::tuple<at::Tensor, at::Tensor, at::Tensor> route_forward_reference(
    const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& history,
    const std::optional<at::Tensor>& sumsq, double depth_factor, double eps, bool scale,
    const std::optional<at::Tensor>& slot, const std::optional<at::Tensor>& slot_sumsq) {
  TORCH_CHECK(history.has_value() == sumsq.has_value() && slot.has_value() == slot_sumsq.has_value(),
              "route: history and slot need their sumsq, got one without the other");
  const auto acc = accumulation_type(x.scalar_type());
  const int64_t d = x.size(1);
  const auto wide = x.to(acc);
  auto logits = at::mm(wide, w.slice(1, 0, d).to(acc).t());
  const auto variance = [](const at::Tensor& z) { return z.var(1, /*unbiased=*/false); };
  auto stats = at::zeros({x.size(0), kRouteStats}, wide.options());
  stats.select(1, kRmsHidden).copy_(wide.pow(2).mean(1).sqrt());
  stats.select(1, kHiddenVariance).copy_(variance(logits));
  if (history && sumsq) {
    const auto rms_h = (sumsq->to(acc).sum(1) / history->size(1)).sqrt();
    const auto rho =
        scale ? stats.select(1, kRmsHidden) / (rms_h + eps) * depth_factor : at::ones_like(rms_h);
    const auto residual = rho.unsqueeze(1) * at::mm(history->to(acc), w.slice(1, d).to(acc).t());
    stats.select(1, kRmsHistory).copy_(rms_h);
    stats.select(1, kRho).copy_(rho);
    stats.select(1, kHistoryVariance).copy_(variance(residual));
    logits = logits + residual;
  }
  auto probs = logits.softmax(1);
  if (slot && slot_sumsq) {
    slot->copy_(probs);
    slot_sumsq->copy_(slot->to(acc).pow(2).sum(1));
  }
  return {logits, probs, stats};
}

std::tuple<at::Tensor, at::Tensor> route_backward_input_reference(
    const at::Tensor& dlogits, const at::Tensor& dprobs, const at::Tensor& probs, const at::Tensor& x,
    const at::Tensor& w, const std::optional<at::Tensor>& history, const at::Tensor& stats) {
  const auto dz = dlogits + probs * (dprobs - (dprobs * probs).sum(1, /*keepdim=*/true));
  const auto dx = at::mm(dz, w.slice(1, 0, x.size(1)).to(dz.scalar_type())).to(x.scalar_type());
  return {dx, history ? at::stack({dz, dz * stats.narrow(1, kRho, 1)}) : dz.unsqueeze(0)};
}

at::Tensor route_backward_weight_reference(const at::Tensor& dz, const at::Tensor& x,
                                           const std::optional<at::Tensor>& history) {
  const auto dw = at::mm(dz[0].t(), x.to(dz.scalar_type()));
  return history ? at::cat({dw, at::mm(dz[1].t(), history->to(dz.scalar_type()))}, 1) : dw;
}

namespace {

std::optional<at::Tensor> if_defined(const at::Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}

struct Route : torch::autograd::Function<Route> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                                                const at::Tensor& w, const VisibleHistory& history,
                                                const HistorySlot& slot) {
    static const auto op = find_operator("hero::route_forward", route_forward_reference);
    // Below ADInplaceOrView, writing a slot does not bump the buffer's version. Views saved by earlier layers
    // for backward stay valid, because the columns they read are not written again.
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [logits, probs, stats] =
        op.call(x, w, if_defined(history.probs), if_defined(history.sumsq), history.depth_factor, history.eps,
                history.scale, if_defined(slot.probs), if_defined(slot.sumsq));
    if (ctx) {
      ctx->save_for_backward({x, w, probs, stats, history.probs});
      ctx->mark_non_differentiable({stats});
      save_queue(ctx);
    }
    return {logits, probs, stats};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto input_op = find_operator("hero::route_backward_input", route_backward_input_reference);
    static const auto weight_op =
        find_operator("hero::route_backward_weight", route_backward_weight_reference);
    const auto saved = ctx->get_saved_variables();
    const auto history = if_defined(saved[4]);
    const auto [dx, dz] = input_op.call(grads[0].contiguous(), grads[1].contiguous(), saved[2], saved[0],
                                        saved[1], history, saved[3]);
    return {dx, weight_gradient(ctx, 1, saved[1], weight_op, dz, saved[0], history), {}, {}};
  }
};

}  // namespace

RouteOutput route(const at::Tensor& x_TD, const at::Tensor& w, const std::optional<VisibleHistory>& history,
                  const HistorySlot& slot) {
  TORCH_CHECK(x_TD.dim() == 2 && w.dim() == 2, "route: x must be [T, D] and weight [E, D+M*E], got ",
              x_TD.sizes(), " and ", w.sizes());
  TORCH_CHECK(x_TD.scalar_type() == w.scalar_type(), "route: x is ", x_TD.scalar_type(), ", weight is ",
              w.scalar_type());
  const int64_t tokens = x_TD.size(0), e = w.size(0), seen = history ? history->probs.size(1) : 0;
  TORCH_CHECK(w.size(1) == x_TD.size(1) + seen, "route: weight must be [E, D+M*E] = [", e, ", ",
              x_TD.size(1) + seen, "], got ", w.sizes());
  TORCH_CHECK(!history || (seen > 0 && seen % e == 0 && history->probs.size(0) == tokens),
              "route: history must be [T, M*E] with T = ", tokens, ", E = ", e, ", got ",
              history ? history->probs.sizes() : at::IntArrayRef());
  TORCH_CHECK(!history || history->sumsq.sizes() == at::IntArrayRef({tokens, seen / e}),
              "route: sumsq must be [T, M] = [", tokens, ", ", seen / e, "], got ",
              history ? history->sumsq.sizes() : at::IntArrayRef());
  TORCH_CHECK(!slot.probs.defined() || (slot.probs.sizes() == at::IntArrayRef({tokens, e}) &&
                                        slot.sumsq.sizes() == at::IntArrayRef({tokens})),
              "route: a slot must be [T, E] = [", tokens, ", ", e, "] with sums [T], got ",
              slot.probs.defined() ? slot.probs.sizes() : at::IntArrayRef());
  auto out = differentiable<Route>(x_TD.contiguous(), w, history.value_or(VisibleHistory{}), slot);
  return {out[0], out[1], out[2]};
}

RouteOutput route_through(const at::Tensor& x_TD, const at::Tensor& w, const std::vector<at::Tensor>& history,
                          double depth_factor, double eps, bool scale) {
  const auto acc = accumulation_type(x_TD.scalar_type());
  const auto wide = x_TD.to(acc), wide_w = widened(w);
  const auto rms_x = (wide.pow(2).mean(1, true)).sqrt();
  auto logits = at::mm(wide, wide_w.slice(1, 0, x_TD.size(1)).t());
  auto stats = at::zeros({x_TD.size(0), kRouteStats}, wide.options());
  stats.select(1, kRmsHidden).copy_(rms_x.detach().squeeze(1));
  stats.select(1, kHiddenVariance).copy_(logits.detach().var(1, false));
  if (!history.empty()) {
    const auto h = at::cat(history, 1).to(acc);
    const auto rms_h = (h.pow(2).mean(1, true)).sqrt();
    const auto rho = scale ? rms_x / (rms_h + eps) * depth_factor : at::ones_like(rms_h);
    const auto residual = rho * at::mm(h, wide_w.slice(1, x_TD.size(1)).t());
    stats.select(1, kRmsHistory).copy_(rms_h.detach().squeeze(1));
    stats.select(1, kRho).copy_(rho.detach().squeeze(1));
    stats.select(1, kHistoryVariance).copy_(residual.detach().var(1, false));
    logits = logits + residual;
  }
  return {logits, logits.softmax(1), stats};
}

}  // namespace hero::ops
