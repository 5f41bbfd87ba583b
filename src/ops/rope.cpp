// Rotary embedding of the last dimension: rotates pairs of features by a position-dependent angle. The
// gradient is the inverse rotation.
#include <ATen/ATen.h>

#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {

at::Tensor rope_reference(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleave,
                          bool inverse) {
  const auto acc = accumulation_type(x.scalar_type());
  const int64_t half = x.size(-1) / 2;
  const auto wide = x.to(acc);
  const auto even = interleave ? wide.slice(-1, 0, 2 * half, 2) : wide.slice(-1, 0, half);
  const auto odd = interleave ? wide.slice(-1, 1, 2 * half, 2) : wide.slice(-1, half, 2 * half);
  const auto c = cos.to(acc).unsqueeze(1), s = (inverse ? -sin : sin).to(acc).unsqueeze(1);
  const auto first = even * c - odd * s, second = even * s + odd * c;
  const auto rotated = interleave ? at::stack({first, second}, -1).flatten(-2) : at::cat({first, second}, -1);
  return rotated.to(x.scalar_type());
}

namespace {

at::Tensor call(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleave,
                bool inverse) {
  static const auto op = find_operator("hero::rope_turn", rope_reference);
  return op.call(x, cos, sin, interleave, inverse);
}

struct Rope : torch::autograd::Function<Rope> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin, bool interleave) {
    if (ctx) {
      ctx->save_for_backward({cos, sin});
      ctx->saved_data["interleave"] = interleave;
    }
    return call(x, cos, sin, interleave, false);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {call(grads[0], saved[0], saved[1], ctx->saved_data["interleave"].toBool(), true), {}, {}, {}};
  }
};

}  // namespace

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleave) {
  TORCH_CHECK(x.dim() == 4 && x.sym_size(3) % 2 == 0, "rope: x must be [B, S, H, R] with R even, got ",
              x.sym_sizes());
  TORCH_CHECK(cos.dim() == 2 && cos.sym_size(0) == x.sym_size(1) && cos.sym_size(1) == x.sym_size(3) / 2 &&
                  sin.sym_sizes() == cos.sym_sizes(),
              "rope: cos and sin must be [S, R/2] = [", x.sym_size(1), ", ", x.sym_size(3) / 2, "], got ",
              cos.sym_sizes());
  return differentiable<Rope>(x, cos, sin, interleave);
}

}  // namespace hero::ops
