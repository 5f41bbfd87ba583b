#include "ops/autograd.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <memory>
#include <utility>

#include "ops/differentiable.h"

namespace hero::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kBackwardKey = "backward";

struct SavedBackward : torch::CustomClassHolder {
  explicit SavedBackward(Backward f) : call(std::move(f)) {}
  Backward call;
};

struct WithBackward : torch::autograd::Function<WithBackward> {
  struct Node {
    const variable_list &outputs, &saved;
    const Backward& backward;
  };
  static variable_list forward(AutogradContext* ctx, at::TensorList, const Node& node) {
    ctx->save_for_backward(node.saved);
    ctx->saved_data[kBackwardKey] =
        c10::IValue::make_capsule(c10::make_intrusive<SavedBackward>(node.backward));
    return node.outputs;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto capsule = ctx->saved_data[kBackwardKey].toCapsule();
    auto input_gradients =
        static_cast<const SavedBackward&>(*capsule).call(ctx->get_saved_variables(), gradients);
    input_gradients.emplace_back();  // of the Node
    return input_gradients;
  }
};

struct Hook : torch::autograd::PostAccumulateGradHook {
  explicit Hook(std::function<void()> f) : call(std::move(f)) {}
  void operator()(const torch::autograd::Variable&) override { call(); }
  std::function<void()> call;
};

}  // namespace

void backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients) {
  torch::autograd::backward(outputs, gradients);
}

std::vector<at::Tensor> with_backward(const std::vector<at::Tensor>& outputs, at::TensorList inputs,
                                      const std::vector<at::Tensor>& saved, const Backward& backward) {
  if (!at::GradMode::is_enabled()) return outputs;
  const WithBackward::Node node{outputs, saved, backward};
  return WithBackward::apply(inputs, node);
}

void set_post_accumulate_grad_hook(const at::Tensor& leaf, std::function<void()> hook) {
  torch::autograd::impl::set_post_acc_grad_hooks(leaf,
                                                 hook ? std::make_unique<Hook>(std::move(hook)) : nullptr);
}

variable_list without_derivatives(const variable_list& gradients) {
  const auto node = std::make_shared<torch::autograd::DelayedError>(
      "hero: this operator has no second derivatives (found create_graph=True)", std::ssize(gradients));
  variable_list inputs;
  for (const at::Tensor& gradient : gradients)
    inputs.push_back(gradient.defined() ? gradient.detach().requires_grad_() : at::Tensor());
  return node->apply(std::move(inputs));
}

}  // namespace hero::ops
