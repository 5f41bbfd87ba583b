#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>

namespace hero::ops {

/// Whether the fused kernels accept these operands: one type, last dimension contiguous.
inline bool last_dim_contiguous(const at::Tensor& q, at::TensorList keys, at::TensorList values) {
  const auto good = [&](const at::Tensor& t) {
    return t.stride(2) == 1 && t.scalar_type() == q.scalar_type();
  };
  return good(q) && std::ranges::all_of(keys, good) && std::ranges::all_of(values, good);
}

}  // namespace hero::ops
