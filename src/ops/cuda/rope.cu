// Rotary embedding on CUDA.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/cuda/kernels/rope.cuh"
#include "ops/cuda/launch.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

using namespace cuda;

at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleave,
                   bool inverse) {
  if (!is_supported(x.scalar_type()) || cos.scalar_type() != at::kFloat || sin.scalar_type() != at::kFloat)
    return rope_reference(x, cos, sin, interleave, inverse);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto in = x.stride(3) == 1 ? x : x.contiguous();
  const auto cosines = cos.contiguous(), sines = sin.contiguous();
  const int64_t half = x.size(3) / 2;
  auto y = at::empty(x.sizes(), x.options());
  if (y.numel() == 0) return y;
  const int64_t values = 2 * kRopePairs, bytes = values * static_cast<int64_t>(in.element_size());
  bool vectors = half % kRopePairs == 0 && reinterpret_cast<uintptr_t>(in.const_data_ptr()) % bytes == 0 &&
                 aligned(cosines) && aligned(sines);
  for (int64_t dim = 0; dim < 3; ++dim) vectors = vectors && in.stride(dim) % values == 0;
  dispatch_type(in.scalar_type(), vectors, [&]<typename T, int n>() {
    const RopeParams<T> params{.batch = in.size(0),
                               .positions = in.size(1),
                               .heads = in.size(2),
                               .half = half,
                               .ld_batch = in.stride(0),
                               .ld_position = in.stride(1),
                               .ld_head = in.stride(2),
                               .x = in.const_data_ptr<T>(),
                               .cos = cosines.const_data_ptr<float>(),
                               .sin = sines.const_data_ptr<float>(),
                               .sign = inverse ? -1.0f : 1.0f,
                               .y = y.data_ptr<T>()};
    constexpr int pairs = n == 1 ? 1 : kRopePairs;
    const auto grid = blocks(y.numel() / 2 / pairs, kRopeThreads);
    const auto stream = at::cuda::getCurrentCUDAStream();
    if (interleave) {
      rotate<pairs, true><<<grid, kRopeThreads, 0, stream>>>(params);
    } else {
      rotate<pairs, false><<<grid, kRopeThreads, 0, stream>>>(params);
    }
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) { m.impl("rope_turn", rotated); }

}  // namespace hero::ops
