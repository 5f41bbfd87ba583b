// RMSNorm, optionally fused with a residual addition. The mean of squares and the normalized value stay in
// fp32 (fp64 for fp64); the output is rounded once. The fused form normalizes the rounded sum.
#include <ATen/ATen.h>

#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {

std::tuple<at::Tensor, at::Tensor> rms_norm_forward_reference(const at::Tensor& x, const at::Tensor& w,
                                                              double eps) {
  const auto acc = accumulation_type(x.scalar_type());
  const auto wide = x.to(acc);
  const auto rstd = (wide.pow(2).mean(-1) + eps).rsqrt();
  return {(wide * rstd.unsqueeze(-1) * w.to(acc)).to(x.scalar_type()), rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_forward_reference(const at::Tensor& x,
                                                                              const at::Tensor& update,
                                                                              const at::Tensor& w,
                                                                              double eps) {
  const auto sum = x + update;
  auto [y, rstd] = rms_norm_forward_reference(sum, w, eps);
  return {sum, y, rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_reference(const at::Tensor& dy, const at::Tensor& x,
                                                               const at::Tensor& w, const at::Tensor& rstd,
                                                               const std::optional<at::Tensor>& dsum) {
  const auto acc = accumulation_type(x.scalar_type());
  const auto normed = x.to(acc) * rstd.unsqueeze(-1);
  const auto wide = dy.to(acc);
  const auto dn = wide * w.to(acc);
  auto dx = (dn - normed * (dn * normed).mean(-1, /*keepdim=*/true)) * rstd.unsqueeze(-1);
  if (dsum) dx = dx + dsum->to(acc);
  return {dx.to(x.scalar_type()), (wide * normed).sum(0)};
}

namespace {

std::tuple<at::Tensor, at::Tensor> norm_forward(const at::Tensor& x, const at::Tensor& w, double eps) {
  static const auto op = find_operator("hero::rms_norm_forward", rms_norm_forward_reference);
  return op.call(x, w, eps);
}

// `saved`: x (or the sum), w, rstd.
std::tuple<at::Tensor, at::Tensor> norm_backward(const at::Tensor& dy,
                                                 const torch::autograd::variable_list& saved,
                                                 const std::optional<at::Tensor>& dsum) {
  static const auto op = find_operator("hero::rms_norm_backward", rms_norm_backward_reference);
  return op.call(dy.contiguous(), saved[0], saved[1], saved[2], dsum);
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            double eps) {
    auto [y, rstd] = norm_forward(x, w, eps);
    if (ctx) ctx->save_for_backward({x, w, rstd});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    auto [dx, dw] = norm_backward(grads[0], ctx->get_saved_variables(), std::nullopt);
    return {dx, dw, {}};
  }
};

struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                                                const std::optional<at::Tensor>& update, const at::Tensor& w,
                                                double eps) {
    if (ctx) ctx->saved_data["update"] = update.has_value();
    if (!update) {
      auto [y, rstd] = norm_forward(x, w, eps);
      if (ctx) ctx->save_for_backward({x, w, rstd});
      return {x, y};
    }
    static const auto op = find_operator("hero::add_rms_norm_forward", add_rms_norm_forward_reference);
    auto [sum, y, rstd] = op.call(x, *update, w, eps);
    if (ctx) ctx->save_for_backward({sum, w, rstd});
    return {sum, y};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    auto [dx, dw] = norm_backward(grads[1], ctx->get_saved_variables(), grads[0].contiguous());
    return {dx, ctx->saved_data["update"].toBool() ? dx : at::Tensor(), dw, {}};
  }
};

void check_weight(const char* name, const at::Tensor& x, const at::Tensor& w) {
  TORCH_CHECK(w.dim() == 1 && x.dim() > 0 && x.sym_size(-1) == w.sym_size(0), name, ": w must be [D] = [",
              x.sym_size(-1), "], got ", w.sym_sizes());
}

at::Tensor rows(const at::Tensor& x) { return x.dim() == 2 ? x : x.reshape_symint({-1, x.sym_size(-1)}); }

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& w_D, double eps) {
  check_weight("rms_norm", x, w_D);
  const auto normed = differentiable<RmsNorm>(rows(x), w_D, eps);
  return x.dim() == 2 ? normed : normed.view_symint(x.sym_sizes());
}

AddRmsNormOutput add_rms_norm(const at::Tensor& x, const at::Tensor& update, const at::Tensor& w_D,
                              double eps) {
  check_weight("add_rms_norm", x, w_D);
  TORCH_CHECK(!update.defined() || (update.sizes() == x.sizes() && update.scalar_type() == x.scalar_type()),
              "add_rms_norm: update must have the type and shape of x, ", x.scalar_type(), " ", x.sizes(),
              ", got ", update.scalar_type(), " ", update.sizes());
  const auto more = update.defined() ? std::optional(rows(update)) : std::nullopt;
  const auto both = differentiable<AddRmsNorm>(rows(x), more, w_D, eps);
  if (x.dim() == 2) return {both[0], both[1]};
  return {both[0].view(x.sizes()), both[1].view(x.sizes())};
}

}  // namespace hero::ops
