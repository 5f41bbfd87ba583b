// y = x W^T. bf16 GEMMs accumulate in fp32; the weight gradient is returned in fp32.
#include <ATen/ATen.h>

#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {

at::Tensor linear_forward_reference(const at::Tensor& x, const at::Tensor& w) { return at::mm(x, w.t()); }
at::Tensor linear_backward_input_reference(const at::Tensor& dy, const at::Tensor& w) {
  return at::mm(dy, w);
}
at::Tensor linear_backward_weight_reference(const at::Tensor& dy, const at::Tensor& x) {
  const auto acc = accumulation_type(x.scalar_type());
  return at::mm(dy.to(acc).t(), x.to(acc));
}

namespace {

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w) {
    static const auto op = find_operator("hero::linear_forward", linear_forward_reference);
    if (ctx) {
      ctx->save_for_backward({needed_for_gradient(x, w), w});
      save_queue(ctx);
    }
    return op.call(x, w);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto input_op =
        find_operator("hero::linear_backward_input", linear_backward_input_reference);
    static const auto weight_op =
        find_operator("hero::linear_backward_weight", linear_backward_weight_reference);
    const auto saved = ctx->get_saved_variables();
    const auto dy = grads[0].contiguous();
    at::Tensor dx;
    if (ctx->needs_input_grad(0)) dx = input_op.call(dy, saved[1]);
    return {dx, weight_gradient(ctx, 1, saved[1], weight_op, dy, saved[0])};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& w_OI) {
  TORCH_CHECK(w_OI.dim() == 2 && x.dim() > 0 && x.sym_size(-1) == w_OI.sym_size(1),
              "linear: w must be [O, I] with I = ", x.sym_size(-1), " as in x ", x.sym_sizes(), ", got ",
              w_OI.sym_sizes());
  TORCH_CHECK(x.scalar_type() == w_OI.scalar_type(), "linear: x is ", x.scalar_type(), ", w is ",
              w_OI.scalar_type());
  if (x.dim() == 2) return differentiable<Linear>(x.contiguous(), w_OI);
  auto shape = x.sym_sizes().vec();
  const auto rows = x.reshape_symint({-1, shape.back()}).contiguous();
  shape.back() = w_OI.sym_size(0);
  return differentiable<Linear>(rows, w_OI).view_symint(shape);
}

}  // namespace hero::ops
