// The weight's gradient of y = x W^T on CUDA, in fp32 as cuBLAS sums it. The other two products are at::mm,
// as in the plain form.
#include <torch/library.h>

#include "ops/cuda/launch.h"
#include "ops/cuda/products.h"
#include "ops/plain.h"

namespace hero::ops {
namespace {

at::Tensor backward_weight(const at::Tensor& dy, const at::Tensor& x) {
  if (!cuda::suits(x.scalar_type()) || dy.scalar_type() != x.scalar_type())
    return linear_backward_weight_plain(dy, x);
  const c10::cuda::CUDAGuard guard(x.device());
  return cuda::wide_mm(dy.t(), x);
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) { m.impl("linear_backward_weight", backward_weight); }

}  // namespace hero::ops
