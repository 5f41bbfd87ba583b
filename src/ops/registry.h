#pragma once
// Calls of registered operators from C++. Each kernel is registered in the library `hero` with a plain form
// for every device (CompositeExplicitAutograd) and, where there is one, a fused form for CPU.
#include <ATen/core/dispatch/Dispatcher.h>

namespace hero::ops {

/// The registered operator `name` with the C++ signature of `plain`.
template <typename Signature>
auto find_operator(const char* name, Signature*) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

/// Type in which sums, softmax and gradients of weights are kept: fp64 for fp64 values, else fp32.
inline at::ScalarType accumulation_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace hero::ops
