#pragma once
// Calls of registered operators from C++. Each kernel is registered in the library `hero` with a plain form
// for every device (CompositeExplicitAutograd) and, where there is one, a fused form for CPU.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace hero::ops {

/// A registered operator, called below autograd: the Functions around it make its gradients, and the
/// dispatcher's stand-in for operators without gradients would box every argument.
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

/// The registered operator `name` with the C++ signature of `plain`.
template <typename Signature>
Operator<Signature> find_operator(const char* name, Signature*) {
  return Operator<Signature>(name);
}

/// Type in which sums, softmax and gradients of weights are kept: fp64 for fp64 values, else fp32.
inline at::ScalarType accumulation_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace hero::ops
