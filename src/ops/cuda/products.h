#pragma once
// Products by cuBLAS whose results leave in fp32, as they were summed. `out` may be some columns of a wider
// matrix.
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

namespace hero::ops::cuda {

inline void wide_mm_out(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) {
    at::mm_out(out, a, b);
  } else {
    at::mm_out(out, a, b, at::kFloat);
  }
}

/// out += a b
inline void add_wide_mm(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) {
    at::addmm_out(out, out, a, b);
  } else {
    at::addmm_out(out, out, a, b, at::kFloat);
  }
}

inline at::Tensor wide_mm(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kFloat ? at::mm(a, b) : at::mm(a, b, at::kFloat);
}

}  // namespace hero::ops::cuda
