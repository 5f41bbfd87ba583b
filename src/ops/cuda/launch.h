#pragma once
// From tensors to launches: which types have kernels, whether rows can be read 16 bytes at a time, and grids.
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <initializer_list>

#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

/// The kernels sum in fp32, so fp64 is left to the plain forms.
inline bool suits(at::ScalarType type) {
  return type == at::kBFloat16 || type == at::kHalf || type == at::kFloat;
}

inline bool aligned(const at::Tensor& x) { return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0; }

/// Whether `width` values of x's type are whole vectors of 16 bytes, which start at such addresses in all of
/// `tensors`.
inline bool suits_vectors(const at::Tensor& x, int64_t width,
                          std::initializer_list<at::Tensor> tensors = {}) {
  bool suited = width * static_cast<int64_t>(x.element_size()) % 16 == 0 && aligned(x);
  for (const auto& other : tensors) suited = suited && aligned(other);
  return suited;
}

/// f<T, n>() for the type of values, n to a vector.
template <typename F>
void for_type(at::ScalarType type, bool vectors, const F& f) {
  const auto widths = [&]<typename T>() {
    if (vectors) {
      f.template operator()<T, kWide<T>>();
    } else {
      f.template operator()<T, 1>();
    }
  };
  if (type == at::kBFloat16) return widths.template operator()<c10::BFloat16>();
  if (type == at::kHalf) return widths.template operator()<c10::Half>();
  TORCH_INTERNAL_ASSERT(type == at::kFloat);
  widths.template operator()<float>();
}

/// Blocks of `per_block` that cover n.
inline dim3 blocks(int64_t n, int64_t per_block, int64_t y = 1) {
  return {static_cast<unsigned>((n + per_block - 1) / per_block), static_cast<unsigned>(y)};
}

}  // namespace hero::ops::cuda
