#pragma once
// Each operator forward and backward in bf16, once through the dispatcher (the fused kernels where there are
// any) and once by its plain form, under the names OPERATOR/SHAPE/fused and OPERATOR/SHAPE/plain.
#include <ATen/ATen.h>

#include <functional>
#include <string>

#include "ops/registry.h"

namespace hero::bench {

/// Registers `step` twice; its argument says whether to call plain forms.
void add(const std::string& name, const std::function<void(bool plain)>& step);

void add_dense();   // linear, attention, norms, swiglu, rope, linear_cross_entropy, adamw
void add_routed();  // route, the sparse choice, dispatch, experts

/// The registered operator, or its plain form.
template <typename Signature, typename... Arguments>
auto call(bool plain, const char* name, Signature* form, const Arguments&... arguments) {
  return plain ? form(arguments...) : ops::find_operator(name, form).call(arguments...);
}

inline at::Tensor random(at::IntArrayRef shape, double scale = 1.0) {
  return (at::randn(shape) * scale).to(at::kBFloat16);
}

}  // namespace hero::bench
