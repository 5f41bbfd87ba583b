#pragma once
// Calls registered operators from C++. Each operator is registered in the library `hero` with a reference
// implementation for every device (CompositeExplicitAutograd) and, where available, fused kernels for CPU and
// CUDA.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace hero::ops {

/// A registered operator, called below autograd: torch::autograd::Functions compute its gradients, and the
/// dispatcher's autograd fallback would box every argument.
template <typename Signature>
class Operator;
template <typename Result, typename... Arguments>
class Operator<Result(Arguments...)> {
 public:
  explicit Operator(const char* name)
      : handle_(c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Result(Arguments...)>()) {}
  Result call(Arguments... arguments) const {
    const at::AutoDispatchBelowAutograd guard;
    return handle_.call(std::forward<Arguments>(arguments)...);
  }

 private:
  c10::TypedOperatorHandle<Result(Arguments...)> handle_;
};

/// The registered operator `name` with the given C++ signature.
template <typename Signature>
Operator<Signature> find_operator(const char* name, Signature*) {
  return Operator<Signature>(name);
}

/// Type of sums, softmax and weight gradients: fp64 for fp64 values, else fp32.
inline at::ScalarType accumulation_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace hero::ops
