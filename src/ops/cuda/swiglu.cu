// silu(g) * u on CUDA.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/cuda/kernels/swiglu.cuh"
#include "ops/cuda/launch.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

using namespace cuda;

at::Tensor cuda_swiglu_forward(const at::Tensor& gate_up) {
  if (!is_supported(gate_up.scalar_type())) return swiglu_forward_reference(gate_up);
  const c10::cuda::CUDAGuard guard(gate_up.device());
  const auto in = gate_up.contiguous();
  auto sizes = in.sizes().vec();
  const int64_t f = sizes.back() /= 2;
  auto y = at::empty(sizes, in.options());
  if (y.numel() == 0) return y;
  dispatch_type(in.scalar_type(), can_vectorize(in, f), [&]<typename T, int n>() {
    const SwigluParams<T> params{
        .rows = y.numel() / f, .f = f, .gate_up = in.const_data_ptr<T>(), .y = y.data_ptr<T>()};
    swiglu_forward<n>
        <<<blocks(y.numel() / n, kSwigluThreads), kSwigluThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
            params);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

at::Tensor cuda_swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  if (!is_supported(gate_up.scalar_type())) return swiglu_backward_reference(dy, gate_up);
  const c10::cuda::CUDAGuard guard(gate_up.device());
  const auto in = gate_up.contiguous(), gradient = dy.contiguous();
  const int64_t f = in.size(-1) / 2;
  auto dgate_up = at::empty(in.sizes(), in.options());
  if (dgate_up.numel() == 0) return dgate_up;
  dispatch_type(in.scalar_type(), can_vectorize(in, f, {gradient}), [&]<typename T, int n>() {
    const SwigluParams<T> params{.rows = in.numel() / (2 * f),
                                 .f = f,
                                 .gate_up = in.const_data_ptr<T>(),
                                 .dy = gradient.const_data_ptr<T>(),
                                 .dgate_up = dgate_up.data_ptr<T>()};
    swiglu_backward<n><<<blocks(params.rows * f / n, kSwigluThreads), kSwigluThreads, 0,
                         at::cuda::getCurrentCUDAStream()>>>(params);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return dgate_up;
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) {
  m.impl("swiglu_forward", cuda_swiglu_forward);
  m.impl("swiglu_backward", cuda_swiglu_backward);
}

}  // namespace hero::ops
