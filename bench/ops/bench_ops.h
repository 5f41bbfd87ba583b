#pragma once
// Benchmarks each operator forward and backward in bf16, through the dispatcher (fused kernels if available)
// and with the reference implementation, as OPERATOR/SHAPE/fused and OPERATOR/SHAPE/plain. On a CPU also the
// GEMM kernels.
#include <ATen/ATen.h>

#include <functional>
#include <string>

#include "ops/registry.h"

namespace hero::bench {

/// Device of all tensors, set from --device.
inline at::Device& device() {
  static at::Device chosen = at::kCPU;
  return chosen;
}

/// Registers `step` twice; `reference` selects the reference implementations.
void add(const std::string& name, const std::function<void(bool reference)>& step);

void add_dense();         // linear, attention, norms, swiglu, rope, latent_heads, linear_cross_entropy, adamw
void add_routed();        // route, top_experts, dispatch, experts
void add_gemm_kernels();  // bf16 GEMM kernels by instruction set

/// Calls the registered operator or its reference implementation.
template <typename Signature, typename... Arguments>
auto call(bool reference, const char* name, Signature* reference_function, const Arguments&... arguments) {
  return reference ? reference_function(arguments...)
                   : ops::find_operator(name, reference_function).call(arguments...);
}

/// fp32 normal samples.
inline at::Tensor wide(at::IntArrayRef shape) { return at::randn(shape, at::TensorOptions(device())); }

/// fp32 uniform samples in [0, 1).
inline at::Tensor uniform(at::IntArrayRef shape) { return at::rand(shape, at::TensorOptions(device())); }

/// bf16 normal samples.
inline at::Tensor random(at::IntArrayRef shape, double scale = 1.0) {
  return (wide(shape) * scale).to(at::kBFloat16);
}

}  // namespace hero::bench
