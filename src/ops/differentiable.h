#pragma once
// For the operators' torch::autograd::Functions. Slow to parse: no header includes this one.
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <tuple>
#include <utility>

#include "ops/deferred.h"

namespace hero::ops {

/// The same gradients, whose backward pass throws: as torch.autograd.function.once_differentiable.
torch::autograd::variable_list without_derivatives(const torch::autograd::variable_list& gradients);

/// F, whose gradients have no derivatives: kernels compute them.
template <class F>
struct OnceDifferentiable : torch::autograd::Function<OnceDifferentiable<F>> {
  template <class... Arguments>
  static auto forward(torch::autograd::AutogradContext* ctx, Arguments&&... arguments) {
    return F::forward(ctx, std::forward<Arguments>(arguments)...);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    auto input_gradients = F::backward(ctx, std::move(gradients));
    return at::GradMode::is_enabled() ? without_derivatives(input_gradients) : input_gradients;
  }
};

/// Applies F as OnceDifferentiable if gradients are enabled; otherwise only F::forward with a null context,
/// for which it must save nothing.
template <class F, class... Arguments>
auto differentiable(Arguments&&... arguments) {
  if (at::GradMode::is_enabled()) return OnceDifferentiable<F>::apply(std::forward<Arguments>(arguments)...);
  return F::forward(nullptr, std::forward<Arguments>(arguments)...);
}

/// For forward passes: saves the active WeightGradientQueue, if any.
void save_queue(torch::autograd::AutogradContext* ctx);
/// The queue that the forward pass saved, or null.
WeightGradientQueue* saved_queue(const torch::autograd::AutogradContext* ctx);

/// For forward passes: saves whether AccumulateWeightGradients is active.
void save_accumulation(torch::autograd::AutogradContext* ctx);
/// Whether it was in the forward pass.
bool accumulates(const torch::autograd::AutogradContext* ctx);
/// For backward passes: whether the gradient of `weight` is to be added to its grad.
bool can_accumulate(const torch::autograd::AutogradContext* ctx, const at::Tensor& weight);

/// For forward passes: the input `x` of a product with `weight`, or nothing if the backward pass does not
/// compute the weight's gradient, the only use of x.
inline at::Tensor needed_for_gradient(const at::Tensor& x, const at::Tensor& weight) {
  return weight.requires_grad() ? x : at::Tensor();
}

inline at::Tensor detached(const at::Tensor& x) { return x.detach(); }
inline std::optional<at::Tensor> detached(const std::optional<at::Tensor>& x) {
  return x ? std::optional(x->detach()) : x;
}

/// For backward passes: the gradient of `weight`, the input of index `input`, which `op` (an Operator of
/// static lifetime) computes from `operands`. Undefined if it is not needed or was deferred to the saved
/// queue.
template <typename Op, typename... Operands>
at::Tensor weight_gradient(torch::autograd::AutogradContext* ctx, size_t input, const at::Tensor& weight,
                           const Op& op, const Operands&... operands) {
  if (!ctx->needs_input_grad(input)) return {};
  auto* queue = saved_queue(ctx);
  if (!queue || !weight.is_leaf()) return op.call(operands...);
  // Detached operands do not keep the graph alive.
  queue->add(weight, [&op, kept = std::tuple(detached(operands)...)] {
    return std::apply([&](const auto&... each) { return op.call(each...); }, kept);
  });
  return {};
}

}  // namespace hero::ops
