// Output projection and cross-entropy fused, in chunks of tokens. Only one chunk of logits exists at a time;
// gradients of the summed loss are computed from it in the forward pass, and the backward pass scales them.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_reference(const at::Tensor& x,
                                                                              const at::Tensor& w,
                                                                              const at::Tensor& targets,
                                                                              bool needs_dx, bool needs_dw) {
  const auto acc = accumulation_type(x.scalar_type());
  constexpr int64_t kChunk = 256;
  const auto wide_w = w.to(acc);
  auto loss = at::zeros({}, x.options().dtype(acc));
  auto dx = at::empty({needs_dx ? x.size(0) : 0, x.size(1)}, x.options()),
       dw = at::zeros({needs_dw ? w.size(0) : 0, w.size(1)}, wide_w.options());
  for (int64_t t = 0; t < x.size(0); t += kChunk) {
    const int64_t end = std::min(t + kChunk, x.size(0));
    const auto rows = x.slice(0, t, end).to(acc);
    const auto target = targets.slice(0, t, end).unsqueeze(1), index = target.clamp_min(0);
    const auto kept = target.ge(0).to(acc);
    const auto log_probs = at::mm(rows, wide_w.t()).log_softmax(1);
    loss -= (log_probs.gather(1, index) * kept).sum();
    if (!needs_dx && !needs_dw) continue;
    const auto dlogits = (log_probs.exp() - at::zeros_like(log_probs).scatter_(1, index, 1.0)) * kept;
    if (needs_dx) dx.slice(0, t, end).copy_(at::mm(dlogits, wide_w));
    if (needs_dw) dw += at::mm(dlogits.t(), rows);
  }
  return {loss, dx, dw};
}

namespace {

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            const at::Tensor& targets, bool needs_dx, bool needs_dw) {
    static const auto op =
        find_operator("hero::linear_cross_entropy_forward", linear_cross_entropy_reference);
    auto [loss, dx, dw] = op.call(x, w, targets, needs_dx, needs_dw);
    if (ctx) {
      save_accumulation(ctx);
      // w for its grad, if that is accumulated directly
      ctx->save_for_backward({dx, dw, accumulates(ctx) ? w : at::Tensor()});
    }
    return loss;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &dx = saved[0], &dw = saved[1], &w = saved[2];
    at::Tensor dx_scaled, dw_scaled;
    if (ctx->needs_input_grad(0)) dx_scaled = (dx * grads[0]).to(dx.scalar_type());
    if (ctx->needs_input_grad(1)) {
      if (w.defined() && can_accumulate(ctx, w)) {
        w.grad().addcmul_(dw, grads[0]);
      } else {
        dw_scaled = dw * grads[0];
      }
    }
    return {dx_scaled, dw_scaled, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x_TD, const at::Tensor& w_VD, const at::Tensor& targets_T) {
  TORCH_CHECK(x_TD.dim() == 2 && w_VD.dim() == 2 && x_TD.sym_size(1) == w_VD.sym_size(1),
              "linear_cross_entropy: w must be [V, ", x_TD.sym_size(1), "], got ", w_VD.sym_sizes());
  TORCH_CHECK(targets_T.dim() == 1 && targets_T.sym_size(0) == x_TD.sym_size(0) &&
                  targets_T.scalar_type() == at::kLong,
              "linear_cross_entropy: targets must be int64 [T] = [", x_TD.sym_size(0), "], got ",
              targets_T.scalar_type(), " ", targets_T.sym_sizes());
  const bool enabled = at::GradMode::is_enabled();
  return differentiable<LinearCrossEntropy>(x_TD.contiguous(), w_VD, targets_T,
                                            enabled && x_TD.requires_grad(), enabled && w_VD.requires_grad());
}

}  // namespace hero::ops
