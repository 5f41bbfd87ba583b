// Casts whose backward pass does not round the gradient, which that of `to` does.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/ops.h"
#include "ops/registry.h"

namespace hero::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Widen : torch::autograd::Function<Widen> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& w) {
    return w.to(accumulation_type(w.scalar_type()));
  }
  static variable_list backward(AutogradContext*, const variable_list& grads) { return grads; }
};

struct RoundStraightThrough : torch::autograd::Function<RoundStraightThrough> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, at::ScalarType type) {
    return x.to(type).to(x.scalar_type());
  }
  static variable_list backward(AutogradContext*, const variable_list& grads) {
    return {grads[0], at::Tensor()};
  }
};

}  // namespace

at::Tensor widened(const at::Tensor& w) {
  return w.scalar_type() == accumulation_type(w.scalar_type()) ? w : Widen::apply(w);
}

at::Tensor round_straight_through(const at::Tensor& x, at::ScalarType type) {
  return x.scalar_type() == type ? x : RoundStraightThrough::apply(x, type);
}

}  // namespace hero::ops
