#pragma once
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace hero::ops {

/// F::apply if gradients are enabled; otherwise only F::forward, without autograd overhead.
template <class F, class... Arguments>
auto differentiable(Arguments&&... arguments) {
  if (at::GradMode::is_enabled()) return F::apply(std::forward<Arguments>(arguments)...);
  torch::autograd::AutogradContext unused_ctx;
  return F::forward(&unused_ctx, std::forward<Arguments>(arguments)...);
}

}  // namespace hero::ops
