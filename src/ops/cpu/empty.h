#pragma once
// Allocation of the kernels' outputs.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

namespace hero::cpu {

/// at::empty without PyTorch's dispatcher, which takes as long as a small allocation.
inline at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type) {
  return at::detail::empty_cpu(sizes, type);
}

}  // namespace hero::cpu
