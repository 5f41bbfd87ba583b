#pragma once
// Launch helpers: supported types, 16-byte vectorization, grid sizes.
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <initializer_list>

#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

/// The kernels accumulate in fp32, so fp64 uses the reference implementations.
inline bool is_supported(at::ScalarType type) {
  return type == at::kBFloat16 || type == at::kHalf || type == at::kFloat;
}

inline bool aligned(const at::Tensor& x) { return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0; }

/// Whether rows of `width` elements of x's type are multiples of 16 bytes, and x and all of `tensors` are
/// 16-byte aligned.
inline bool can_vectorize(const at::Tensor& x, int64_t width,
                          std::initializer_list<at::Tensor> tensors = {}) {
  bool suited = width * static_cast<int64_t>(x.element_size()) % 16 == 0 && aligned(x);
  for (const auto& other : tensors) suited = suited && aligned(other);
  return suited;
}

/// Calls f<T, n>() for the element type T and vector width n.
template <typename F>
void dispatch_type(at::ScalarType type, bool vectors, const F& f) {
  const auto widths = [&]<typename T>() {
    if (vectors) {
      f.template operator()<T, kVectorSize<T>>();
    } else {
      f.template operator()<T, 1>();
    }
  };
  if (type == at::kBFloat16) return widths.template operator()<c10::BFloat16>();
  if (type == at::kHalf) return widths.template operator()<c10::Half>();
  TORCH_INTERNAL_ASSERT(type == at::kFloat);
  widths.template operator()<float>();
}

/// Grid of ceil(n / per_block) by y blocks.
inline dim3 blocks(int64_t n, int64_t per_block, int64_t y = 1) {
  return {static_cast<unsigned>((n + per_block - 1) / per_block), static_cast<unsigned>(y)};
}

}  // namespace hero::ops::cuda
