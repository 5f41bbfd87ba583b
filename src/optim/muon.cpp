#include "optim/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "ops/ops.h"

namespace hero {

void muon_step(const at::Tensor& values, const at::Tensor& gradient, const at::Tensor& momentum,
               const at::Tensor& leaf, const MuonOptions& options, const std::optional<at::Tensor>& scale,
               const std::optional<at::Tensor>& skip) {
  const auto g = scale ? gradient * scale->to(gradient.scalar_type()) : gradient;
  // On a GPU the host does not know whether the step is skipped: results are copied conditionally.
  const auto next = skip ? momentum.clone() : momentum, moved = skip ? values.clone() : values;
  next.lerp_(g, 1 - options.momentum);
  const auto update = ops::newton_schulz(g.lerp(next, options.momentum));
  const auto longer = static_cast<double>(std::max(values.size(1), values.size(2)));
  moved.mul_(1 - options.lr * options.weight_decay).sub_(update, options.lr * 0.2 * std::sqrt(longer));
  if (skip) {
    const auto skipped = *skip == 1;
    momentum.copy_(at::where(skipped, momentum, next));
    values.copy_(at::where(skipped, values, moved));
  }
  if (leaf.defined()) leaf.copy_(values);
}

}  // namespace hero
