#pragma once
// GEMMs with fp32 output from cuBLAS. `out` may be a column range of a wider matrix.
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

namespace hero::ops::cuda {

inline void mm_out_fp32(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) {
    at::mm_out(out, a, b);
  } else {
    at::mm_out(out, a, b, at::kFloat);
  }
}

/// out += a b
inline void addmm_fp32(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) {
    at::addmm_out(out, out, a, b);
  } else {
    at::addmm_out(out, out, a, b, at::kFloat);
  }
}

inline at::Tensor mm_fp32(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kFloat ? at::mm(a, b) : at::mm(a, b, at::kFloat);
}

}  // namespace hero::ops::cuda
