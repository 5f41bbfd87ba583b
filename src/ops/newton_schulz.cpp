// The orthogonalization of Muon. The coefficients and the constant in the norm are those of torch.optim.Muon.
#include "ops/newton_schulz.h"

#include <ATen/ATen.h>

#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {

at::Tensor newton_schulz_reference(const at::Tensor& x) {
  auto y = x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kBFloat16);
  // The products with the smaller of I and O are cheaper.
  const bool tall = x.size(1) > x.size(2);
  if (tall) y = y.transpose(1, 2);
  y = y / at::norm(y, 2, {1, 2}, /*keepdim=*/true).clamp_min(NewtonSchulz::kEps);
  for (int64_t i = 0; i < NewtonSchulz::kSteps; ++i) {
    const auto gram = at::bmm(y, y.transpose(1, 2));
    const auto polynomial = at::baddbmm(gram, gram, gram, NewtonSchulz::kB, NewtonSchulz::kC);
    y = at::baddbmm(y, polynomial, y, NewtonSchulz::kA);
  }
  return (tall ? y.transpose(1, 2) : y).contiguous();
}

at::Tensor newton_schulz(const at::Tensor& x) {
  static const auto op = find_operator("hero::newton_schulz", newton_schulz_reference);
  TORCH_CHECK(x.dim() == 3, "newton_schulz: expected x [B, I, O], got ", x.sizes());
  return op.call(x);
}

}  // namespace hero::ops
