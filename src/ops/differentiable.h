#pragma once
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace hero::ops {

/// F's results, recorded for a backward pass where gradients are asked for; elsewhere its forward pass alone,
/// without the record's cost.
template <class F, class... Arguments>
auto differentiable(Arguments&&... arguments) {
  if (at::GradMode::is_enabled()) return F::apply(std::forward<Arguments>(arguments)...);
  torch::autograd::AutogradContext unread;
  return F::forward(&unread, std::forward<Arguments>(arguments)...);
}

}  // namespace hero::ops
