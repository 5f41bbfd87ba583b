// RMSNorm. The mean of squares and the normalised value stay in fp32 (fp64 for fp64); the output is rounded
// once.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/plain.h"
#include "ops/registry.h"

namespace hero::ops {

std::tuple<at::Tensor, at::Tensor> rms_norm_forward_plain(const at::Tensor& x, const at::Tensor& w,
                                                          double eps) {
  const auto acc = accumulation_type(x.scalar_type());
  const auto wide = x.to(acc);
  const auto rstd = (wide.pow(2).mean(-1) + eps).rsqrt();
  return {(wide * rstd.unsqueeze(-1) * w.to(acc)).to(x.scalar_type()), rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_plain(const at::Tensor& dy, const at::Tensor& x,
                                                           const at::Tensor& w, const at::Tensor& rstd) {
  const auto acc = accumulation_type(x.scalar_type());
  const auto normed = x.to(acc) * rstd.unsqueeze(-1);
  const auto wide = dy.to(acc);
  const auto dn = wide * w.to(acc);
  const auto dx = (dn - normed * (dn * normed).mean(-1, /*keepdim=*/true)) * rstd.unsqueeze(-1);
  return {dx.to(x.scalar_type()), (wide * normed).sum(0)};
}

TORCH_LIBRARY_FRAGMENT(hero, m) {
  m.def("rms_norm_forward(Tensor x, Tensor w, float eps) -> (Tensor, Tensor)");
  m.def("rms_norm_backward(Tensor dy, Tensor x, Tensor w, Tensor rstd) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(hero, CompositeExplicitAutograd, m) {
  m.impl("rms_norm_forward", rms_norm_forward_plain);
  m.impl("rms_norm_backward", rms_norm_backward_plain);
}

namespace {

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            double eps) {
    static const auto op = find_operator("hero::rms_norm_forward", rms_norm_forward_plain);
    auto [y, rstd] = op.call(x, w, eps);
    ctx->save_for_backward({x, w, rstd});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator("hero::rms_norm_backward", rms_norm_backward_plain);
    const auto saved = ctx->get_saved_variables();
    auto [dx, dw] = op.call(grads[0].contiguous(), saved[0], saved[1], saved[2]);
    return {dx, dw, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& w_D, double eps) {
  TORCH_CHECK(w_D.dim() == 1 && x.dim() > 0 && x.sym_size(-1) == w_D.sym_size(0),
              "rms_norm: w must be [D] = [", x.sym_size(-1), "], got ", w_D.sym_sizes());
  return differentiable<RmsNorm>(x.reshape_symint({-1, x.sym_size(-1)}), w_D, eps).view_symint(x.sym_sizes());
}

}  // namespace hero::ops
