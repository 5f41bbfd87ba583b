#include "model/layers.h"

#include <ATen/ATen.h>

#include "ops/ops.h"

namespace hero {

RotaryTable rotary_table(int64_t first, int64_t count, int64_t rotary_dims, double theta,
                         at::ScalarType dtype) {
  const auto type = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto options = at::TensorOptions(type);
  const auto exponent = at::arange(0, rotary_dims, 2, options) / static_cast<double>(rotary_dims);
  const auto inverse = at::pow(at::full({}, theta, options), exponent).reciprocal();
  const auto angle = at::outer(at::arange(first, first + count, options), inverse);
  return {angle.cos(), angle.sin()};
}

void LayerCache::append(const at::Tensor& a, const at::Tensor& b, int64_t dim) {
  first = first.defined() ? at::cat({first, a}, dim) : a;
  second = second.defined() ? at::cat({second, b}, dim) : b;
}

FeedForward::FeedForward(Parameters& parameters, const std::string& prefix, int64_t hidden,
                         int64_t intermediate, double std) {
  const auto init = normal_init(std);
  gate_up_ = parameters.add(prefix + ".gate_up_proj.weight", {2 * intermediate, hidden},
                            {{prefix + ".gate_proj.weight", {intermediate, hidden}, init},
                             {prefix + ".up_proj.weight", {intermediate, hidden}, init}},
                            /*decay=*/true);
  down_ = parameters.add(prefix + ".down_proj.weight", {hidden, intermediate}, init, true);
}

at::Tensor FeedForward::operator()(const at::Tensor& x_TD) const {
  return ops::linear(ops::swiglu(ops::linear(x_TD, gate_up_)), down_);
}

}  // namespace hero
