// Weight gradient of y = x W^T on CUDA, with fp32 output from cuBLAS. The other two GEMMs are at::mm, as in
// the reference.
#include <torch/library.h>

#include "ops/cuda/launch.h"
#include "ops/cuda/mm_fp32.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

at::Tensor cuda_linear_backward_weight(const at::Tensor& dy, const at::Tensor& x) {
  if (!cuda::is_supported(x.scalar_type()) || dy.scalar_type() != x.scalar_type())
    return linear_backward_weight_reference(dy, x);
  const c10::cuda::CUDAGuard guard(x.device());
  return cuda::mm_fp32(dy.t(), x);
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) { m.impl("linear_backward_weight", cuda_linear_backward_weight); }

}  // namespace hero::ops
