// silu(g) * u (arXiv 2002.05202), with silu(g) = g / (1 + e^-g).
#include <ATen/ATen.h>

#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {

at::Tensor swiglu_forward_reference(const at::Tensor& gate_up) {
  const auto parts = gate_up.to(accumulation_type(gate_up.scalar_type())).chunk(2, -1);
  return (at::silu(parts[0]) * parts[1]).to(gate_up.scalar_type());
}

at::Tensor swiglu_backward_reference(const at::Tensor& dy, const at::Tensor& gate_up) {
  const auto acc = accumulation_type(gate_up.scalar_type());
  const auto parts = gate_up.to(acc).chunk(2, -1);
  const auto s = at::sigmoid(parts[0]), silu = parts[0] * s, wide = dy.to(acc);
  return at::cat({wide * parts[1] * (s + silu * (1 - s)), wide * silu}, -1).to(gate_up.scalar_type());
}

namespace {

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& gate_up) {
    static const auto op = find_operator("hero::swiglu_forward", swiglu_forward_reference);
    if (ctx) ctx->save_for_backward({gate_up});
    return op.call(gate_up);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator("hero::swiglu_backward", swiglu_backward_reference);
    return {op.call(grads[0], ctx->get_saved_variables()[0])};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up) {
  TORCH_CHECK(gate_up.dim() > 0 && gate_up.sym_size(-1) % 2 == 0,
              "swiglu: the last dimension must be 2F, got ", gate_up.sym_sizes());
  return differentiable<Swiglu>(gate_up);
}

}  // namespace hero::ops
