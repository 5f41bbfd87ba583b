#pragma once
// Each operator forward and backward in bf16, once through the dispatcher (the fused kernels where there are
// any) and once by its plain form, under the names OPERATOR/SHAPE/fused and OPERATOR/SHAPE/plain. On a CPU
// also the blocks of products below them.
#include <ATen/ATen.h>

#include <functional>
#include <string>

#include "ops/registry.h"

namespace hero::bench {

/// Where tensors are made and steps run: --device, which main sets.
inline at::Device& device() {
  static at::Device chosen = at::kCPU;
  return chosen;
}

/// Registers `step` twice; its argument says whether to call plain forms.
void add(const std::string& name, const std::function<void(bool plain)>& step);

void add_dense();   // linear, attention, norms, swiglu, rope, linear_cross_entropy, adamw
void add_routed();  // route, the sparse choice, dispatch, experts
void add_blocks();  // blocks of bf16 products by instruction set

/// The registered operator, or its plain form.
template <typename Signature, typename... Arguments>
auto call(bool plain, const char* name, Signature* form, const Arguments&... arguments) {
  return plain ? form(arguments...) : ops::find_operator(name, form).call(arguments...);
}

/// fp32, normal.
inline at::Tensor wide(at::IntArrayRef shape) { return at::randn(shape, at::TensorOptions(device())); }

/// fp32, in [0, 1).
inline at::Tensor uniform(at::IntArrayRef shape) { return at::rand(shape, at::TensorOptions(device())); }

/// bf16, normal.
inline at::Tensor random(at::IntArrayRef shape, double scale = 1.0) {
  return (wide(shape) * scale).to(at::kBFloat16);
}

}  // namespace hero::bench
