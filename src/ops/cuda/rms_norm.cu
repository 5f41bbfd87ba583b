// RMSNorm on CUDA.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/kernels/rms_norm.cuh"
#include "ops/cuda/launch.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

using namespace cuda;

constexpr int64_t kBlocks = 1024;  // for reductions of strips: several per SM
constexpr int64_t kMaxNormStrips = 512, kMinNormStrip = 64;

bool fused(const at::Tensor& x, const at::Tensor& w) {
  return is_supported(x.scalar_type()) && w.scalar_type() == x.scalar_type();
}

// Normalizes x, or x + update if update is defined, and then also returns the sum.
std::tuple<at::Tensor, at::Tensor, at::Tensor> launch_forward(const at::Tensor& x, const at::Tensor& update,
                                                              const at::Tensor& w, double eps) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto in = x.contiguous(), weight = w.contiguous();
  const auto addend = update.defined() ? update.contiguous() : at::Tensor();
  const int64_t rows = x.size(0), d = x.size(1);
  auto y = at::empty({rows, d}, x.options()), rstd = at::empty({rows}, x.options().dtype(at::kFloat));
  auto sum = update.defined() ? at::empty({rows, d}, x.options()) : at::Tensor();
  if (y.numel() == 0) return {sum, y, rstd};
  const bool vectors = can_vectorize(in, d, {weight, update.defined() ? addend : in});
  dispatch_type(x.scalar_type(), vectors, [&]<typename T, int n>() {
    norm_forward<n>
        <<<blocks(rows, kNormWarps), dim3(kWarpSize, kNormWarps), 0, at::cuda::getCurrentCUDAStream()>>>(
            RmsNormParams<T>{.rows = rows,
                             .d = d,
                             .x = in.const_data_ptr<T>(),
                             .w = weight.const_data_ptr<T>(),
                             .addend = update.defined() ? addend.const_data_ptr<T>() : nullptr,
                             .eps = static_cast<float>(eps),
                             .rstd = rstd.data_ptr<float>(),
                             .sum = update.defined() ? sum.data_ptr<T>() : nullptr,
                             .out = y.data_ptr<T>()});
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {sum, y, rstd};
}

std::tuple<at::Tensor, at::Tensor> cuda_rms_norm_forward(const at::Tensor& x, const at::Tensor& w,
                                                         double eps) {
  if (!fused(x, w)) return rms_norm_forward_reference(x, w, eps);
  auto [none, y, rstd] = launch_forward(x, {}, w, eps);
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_forward(const at::Tensor& x, const at::Tensor& update,
                                                           const at::Tensor& w, double eps) {
  return fused(x, w) ? launch_forward(x, update, w, eps) : add_rms_norm_forward_reference(x, update, w, eps);
}

std::tuple<at::Tensor, at::Tensor> cuda_rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                          const at::Tensor& w, const at::Tensor& rstd,
                                                          const std::optional<at::Tensor>& dsum) {
  if (!fused(x, w)) return rms_norm_backward_reference(dy, x, w, rstd, dsum);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = at::cuda::getCurrentCUDAStream();
  const auto in = x.contiguous(), weight = w.contiguous(), gradient = dy.contiguous();
  const auto addend = dsum ? dsum->contiguous() : at::Tensor();
  const int64_t rows = x.size(0), d = x.size(1);
  auto dx = at::empty({rows, d}, x.options());
  if (dx.numel() == 0) return {dx, at::zeros({d}, rstd.options())};
  auto dw = at::empty({d}, rstd.options());
  const int64_t tiles = (d + kWarpSize * kStripColumns - 1) / (kWarpSize * kStripColumns);
  const int64_t most = std::clamp<int64_t>(kBlocks / tiles, 1, kMaxNormStrips);
  const int64_t strip = std::max(kMinNormStrip, (rows + most - 1) / most);
  const int64_t strips = (rows + strip - 1) / strip;
  const auto partial = at::empty({strips, d}, rstd.options());
  const bool vectors = can_vectorize(in, d, {weight, gradient, dsum ? addend : in});
  dispatch_type(x.scalar_type(), vectors, [&]<typename T, int n>() {
    norm_backward<n><<<blocks(rows, kNormWarps), dim3(kWarpSize, kNormWarps), 0, stream>>>(
        RmsNormParams<T>{.rows = rows,
                         .d = d,
                         .x = in.const_data_ptr<T>(),
                         .w = weight.const_data_ptr<T>(),
                         .dy = gradient.const_data_ptr<T>(),
                         .addend = dsum ? addend.const_data_ptr<T>() : nullptr,
                         .rstd = rstd.data_ptr<float>(),
                         .out = dx.data_ptr<T>()});
    constexpr int columns = n == 1 ? 1 : kStripColumns;
    norm_weight_strips<columns>
        <<<blocks(d, kWarpSize * columns, strips), dim3(kWarpSize, kStripWarps), 0, stream>>>(
            rows, d, strip, gradient.const_data_ptr<T>(), in.const_data_ptr<T>(),
            rstd.const_data_ptr<float>(), partial.data_ptr<float>());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  add_strips<<<blocks(d, kWarpSize), dim3(kWarpSize, kStripWarps), 0, stream>>>(
      strips, d, partial.const_data_ptr<float>(), dw.data_ptr<float>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {dx, dw};
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) {
  m.impl("rms_norm_forward", cuda_rms_norm_forward);
  m.impl("add_rms_norm_forward", add_forward);
  m.impl("rms_norm_backward", cuda_rms_norm_backward);
}

}  // namespace hero::ops
