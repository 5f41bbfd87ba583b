// RMSNorm of every head fused with rotary embedding, as for Qwen3's queries and keys. Heads may be a slice of
// a wider projection. No rounding in between.
#include <ATen/ATen.h>

#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {

std::tuple<at::Tensor, at::Tensor> norm_rope_forward_reference(const at::Tensor& x, const at::Tensor& w,
                                                               double eps, const at::Tensor& cos,
                                                               const at::Tensor& sin) {
  const auto [normed, rstd] = rms_norm_forward_reference(x.to(accumulation_type(x.scalar_type())), w, eps);
  return {rope_reference(normed, cos, sin, /*interleave=*/false, /*inverse=*/false).to(x.scalar_type()),
          rstd};
}

std::tuple<at::Tensor, at::Tensor> norm_rope_backward_reference(const at::Tensor& dy, const at::Tensor& x,
                                                                const at::Tensor& w, const at::Tensor& rstd,
                                                                const at::Tensor& cos,
                                                                const at::Tensor& sin) {
  const auto acc = accumulation_type(x.scalar_type());
  const auto rotated = rope_reference(dy.to(acc), cos, sin, false, /*inverse=*/true);
  const auto [dx, dw] = rms_norm_backward_reference(rotated, x.to(acc), w, rstd, std::nullopt);
  return {dx.to(x.scalar_type()), dw.sum(at::IntArrayRef({0, 1}))};
}

namespace {

struct NormRope : torch::autograd::Function<NormRope> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            double eps, const at::Tensor& cos, const at::Tensor& sin) {
    static const auto op = find_operator("hero::norm_rope_forward", norm_rope_forward_reference);
    auto [y, rstd] = op.call(x, w, eps, cos, sin);
    if (ctx) ctx->save_for_backward({x, w, rstd, cos, sin});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator("hero::norm_rope_backward", norm_rope_backward_reference);
    const auto saved = ctx->get_saved_variables();
    auto [dx, dw] = op.call(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4]);
    return {dx, dw, {}, {}, {}};
  }
};

}  // namespace

at::Tensor norm_rope(const at::Tensor& x, const at::Tensor& w_R, double eps, const at::Tensor& cos,
                     const at::Tensor& sin) {
  TORCH_CHECK(x.dim() == 4 && x.size(3) % 2 == 0 && w_R.dim() == 1 && w_R.size(0) == x.size(3),
              "norm_rope: expected x [B, S, H, R] with R even and w [R], got ", x.sizes(), " and ",
              w_R.sizes());
  TORCH_CHECK(cos.sizes() == at::IntArrayRef({x.size(1), x.size(3) / 2}) && sin.sizes() == cos.sizes(),
              "norm_rope: cos and sin must be [S, R/2] = [", x.size(1), ", ", x.size(3) / 2, "], got ",
              cos.sizes(), " and ", sin.sizes());
  return differentiable<NormRope>(x, w_R, eps, cos, sin);
}

}  // namespace hero::ops
