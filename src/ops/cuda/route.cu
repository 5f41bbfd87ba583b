// Router on CUDA: the products by cuBLAS with fp32 results, then one warp per token for everything else: RMS,
// rho, the sum of the products, softmax, the history slot with its sum of squares, and the statistics.
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "ops/plain.h"

namespace hero::ops {
namespace {

constexpr int kLanes = 32, kWarps = 4;  // of a block

template <typename T>
struct Rows {
  int64_t rows, d, experts, visible;
  const T* x;             // [rows, d]
  float* logits;          // [rows, E], holds Z_O on entry
  const float* residual;  // H W_R^T, null without history
  const float* sumsq;     // [rows, M], row stride ld_sumsq
  int64_t ld_sumsq;
  float depth_factor, eps;
  bool scale;
  float *probs, *stats;
  T* slot;  // null: nobody reads it
  int64_t ld_slot;
  float* slot_sumsq;
  int64_t ld_slot_sumsq;
};

__device__ float warp_sum(float v) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

__device__ float warp_max(float v) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
}

// Of the n values of one row, for every lane.
__device__ float variance(const float* z, int64_t n) {
  float sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < n; i += kLanes) sum += z[i];
  const float mean = warp_sum(sum) / n;
  for (int64_t i = threadIdx.x; i < n; i += kLanes) squares += (z[i] - mean) * (z[i] - mean);
  return warp_sum(squares) / n;
}

template <typename T>
__global__ void finish_rows(Rows<T> a) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y, e = a.experts;
  if (r >= a.rows) return;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < a.d; i += kLanes) {
    const float v = static_cast<float>(a.x[r * a.d + i]);
    squares += v * v;
  }
  const float rms_x = sqrtf(warp_sum(squares) / a.d);
  float *z = a.logits + r * e, *p = a.probs + r * e;
  const float variance_o = variance(z, e);
  float rms_h = 0, rho = 0, variance_r = 0;
  if (a.residual) {
    const float* residual = a.residual + r * e;
    float energy = 0;
    for (int64_t j = threadIdx.x; j < a.visible; j += kLanes) energy += a.sumsq[r * a.ld_sumsq + j];
    rms_h = sqrtf(warp_sum(energy) / (a.visible * e));
    rho = a.scale ? rms_x / (rms_h + a.eps) * a.depth_factor : 1.0f;
    variance_r = rho * rho * variance(residual, e);
    for (int64_t i = threadIdx.x; i < e; i += kLanes) z[i] += rho * residual[i];
  }
  float highest = -INFINITY, sum = 0, stored = 0;
  for (int64_t i = threadIdx.x; i < e; i += kLanes) highest = fmaxf(highest, z[i]);
  highest = warp_max(highest);
  for (int64_t i = threadIdx.x; i < e; i += kLanes) sum += p[i] = expf(z[i] - highest);
  const float inverse = 1.0f / warp_sum(sum);
  for (int64_t i = threadIdx.x; i < e; i += kLanes) {
    p[i] *= inverse;
    if (a.slot) {
      const T rounded = static_cast<T>(p[i]);
      a.slot[r * a.ld_slot + i] = rounded;
      stored += static_cast<float>(rounded) * static_cast<float>(rounded);
    }
  }
  stored = warp_sum(stored);
  if (threadIdx.x == 0) {
    if (a.slot) a.slot_sumsq[r * a.ld_slot_sumsq] = stored;
    float* stats = a.stats + r * 5;
    stats[0] = rms_x;
    stats[1] = rms_h;
    stats[2] = rho;
    stats[3] = variance_o;
    stats[4] = variance_r;
  }
}

// dz, the gradient of the logits through both outputs, and rho * dz.
template <typename T>
__global__ void logit_gradient(int64_t rows, int64_t e, const float* dlogits, const float* dprobs,
                               const float* probs, const float* stats, T* dz, T* scaled) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (r >= rows) return;
  const float *dl = dlogits + r * e, *dp = dprobs + r * e, *p = probs + r * e;
  float dot = 0;
  for (int64_t i = threadIdx.x; i < e; i += kLanes) dot += dp[i] * p[i];
  dot = warp_sum(dot);
  for (int64_t i = threadIdx.x; i < e; i += kLanes) {
    const float g = dl[i] + p[i] * (dp[i] - dot);
    dz[r * e + i] = static_cast<T>(g);
    if (scaled) scaled[r * e + i] = static_cast<T>(stats[r * 5 + 2] * g);
  }
}

at::Tensor wide_mm(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kFloat ? at::mm(a, b) : at::mm(a, b, at::kFloat);
}

bool fused(const at::Tensor& x, const std::optional<at::Tensor>& history,
           const std::optional<at::Tensor>& slot) {
  const auto type = x.scalar_type();
  return (type == at::kBFloat16 || type == at::kHalf || type == at::kFloat) && x.is_contiguous() &&
         x.size(0) > 0 && (!history || history->scalar_type() == type) &&
         (!slot || (slot->scalar_type() == type && slot->stride(1) == 1));
}

dim3 blocks(int64_t rows) { return {static_cast<unsigned>((rows + kWarps - 1) / kWarps)}; }

std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& w,
                                                       const std::optional<at::Tensor>& history,
                                                       const std::optional<at::Tensor>& sumsq,
                                                       double depth_factor, double eps, bool scale,
                                                       const std::optional<at::Tensor>& slot,
                                                       const std::optional<at::Tensor>& slot_sumsq) {
  if (!fused(x, history, slot))
    return route_forward_plain(x, w, history, sumsq, depth_factor, eps, scale, slot, slot_sumsq);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t rows = x.size(0), d = x.size(1), e = w.size(0);
  auto logits = wide_mm(x, w.slice(1, 0, d).t());
  const auto residual = history ? wide_mm(*history, w.slice(1, d).t()) : at::Tensor();
  const auto squares = history ? sumsq->to(at::kFloat) : at::Tensor();
  TORCH_INTERNAL_ASSERT(!history || squares.size(1) == 1 || squares.stride(1) == 1);
  auto probs = at::empty_like(logits), stats = at::empty({rows, 5}, logits.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "route_forward", [&] {
    const Rows<scalar_t> work{.rows = rows,
                              .d = d,
                              .experts = e,
                              .visible = history ? history->size(1) / e : 0,
                              .x = x.const_data_ptr<scalar_t>(),
                              .logits = logits.data_ptr<float>(),
                              .residual = history ? residual.const_data_ptr<float>() : nullptr,
                              .sumsq = history ? squares.const_data_ptr<float>() : nullptr,
                              .ld_sumsq = history ? squares.stride(0) : 0,
                              .depth_factor = static_cast<float>(depth_factor),
                              .eps = static_cast<float>(eps),
                              .scale = scale,
                              .probs = probs.data_ptr<float>(),
                              .stats = stats.data_ptr<float>(),
                              .slot = slot ? slot->data_ptr<scalar_t>() : nullptr,
                              .ld_slot = slot ? slot->stride(0) : 0,
                              .slot_sumsq = slot ? slot_sumsq->data_ptr<float>() : nullptr,
                              .ld_slot_sumsq = slot ? slot_sumsq->stride(0) : 0};
    finish_rows<<<blocks(rows), dim3(kLanes, kWarps), 0, at::cuda::getCurrentCUDAStream()>>>(work);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {logits, probs, stats};
}

std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& dlogits, const at::Tensor& dprobs,
                                            const at::Tensor& probs, const at::Tensor& x, const at::Tensor& w,
                                            const std::optional<at::Tensor>& history,
                                            const at::Tensor& stats) {
  if (!fused(x, history, std::nullopt))
    return route_backward_plain(dlogits, dprobs, probs, x, w, history, stats);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t rows = x.size(0), e = w.size(0);
  const auto dl = dlogits.contiguous(), dp = dprobs.contiguous();
  auto dz = at::empty({rows, e}, x.options());
  auto scaled = history ? at::empty_like(dz) : at::Tensor();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "route_backward", [&] {
    logit_gradient<<<blocks(rows), dim3(kLanes, kWarps), 0, at::cuda::getCurrentCUDAStream()>>>(
        rows, e, dl.const_data_ptr<float>(), dp.const_data_ptr<float>(), probs.const_data_ptr<float>(),
        stats.const_data_ptr<float>(), dz.data_ptr<scalar_t>(),
        history ? scaled.data_ptr<scalar_t>() : nullptr);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  const auto dx = at::mm(dz, w.slice(1, 0, x.size(1)));
  auto dw = wide_mm(dz.t(), x);
  if (history) dw = at::cat({dw, wide_mm(scaled.t(), *history)}, 1);
  return {dx, dw};
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) {
  m.impl("route_forward", forward);
  m.impl("route_backward", backward);
}

}  // namespace hero::ops
