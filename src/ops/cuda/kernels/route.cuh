#pragma once
// Router epilogue: one warp per token computes RMS, rho, the sum of both branches, softmax, the history slot
// with its sum of squares, and the statistics; in the backward pass, the gradient of the logits and rho times
// it.
#include "ops/cuda/kernels/device.cuh"
#include "ops/route_stats.h"

namespace hero::ops::cuda {

inline constexpr int kRouteWarps = 4;  // per block, one token each

template <typename T>
struct RouteParams {
  int64_t rows, d, experts, visible;
  const T* x;             // [rows, d]
  float* logits;          // [rows, E], holds Z_O on entry
  const float* residual;  // H W_R^T, null without history
  const float* sumsq;     // [rows, M], row stride ld_sumsq
  int64_t ld_sumsq;
  float depth_factor, eps;
  bool scale;
  float* probs;
  float* stats;  // [rows, kRouteStats]
  T* slot;       // null: not stored
  int64_t ld_slot;
  float* slot_sumsq;
  int64_t ld_slot_sumsq;
};

// Variance of the n elements of a row, in every lane.
__device__ __forceinline__ float variance(const float* z, int64_t n) {
  float sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < n; i += kWarpSize) sum += z[i];
  const float mean = warp_sum(sum) / n;
  for (int64_t i = threadIdx.x; i < n; i += kWarpSize) squares += (z[i] - mean) * (z[i] - mean);
  return warp_sum(squares) / n;
}

template <int n, typename T>
__global__ void route_rows(RouteParams<T> a) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kRouteWarps + threadIdx.y, e = a.experts;
  if (r >= a.rows) return;
  float squares = 0;
  for (int64_t c = threadIdx.x * n; c < a.d; c += kWarpSize * n) {
    const auto v = load_fp32<n>(a.x + r * a.d + c);
    HERO_UNROLL
    for (int i = 0; i < n; ++i) squares += v.value[i] * v.value[i];
  }
  const float rms_x = sqrtf(warp_sum(squares) / a.d);
  float *z = a.logits + r * e, *p = a.probs + r * e;
  const float variance_o = variance(z, e);
  float rms_h = 0, rho = 0, variance_r = 0;
  if (a.residual) {
    const float* residual = a.residual + r * e;
    float energy = 0;
    for (int64_t j = threadIdx.x; j < a.visible; j += kWarpSize) energy += a.sumsq[r * a.ld_sumsq + j];
    rms_h = sqrtf(warp_sum(energy) / (a.visible * e));
    rho = a.scale ? rms_x / (rms_h + a.eps) * a.depth_factor : 1.0f;
    variance_r = rho * rho * variance(residual, e);
    for (int64_t i = threadIdx.x; i < e; i += kWarpSize) z[i] += rho * residual[i];
  }
  float highest = -INFINITY, sum = 0, stored = 0;
  for (int64_t i = threadIdx.x; i < e; i += kWarpSize) highest = fmaxf(highest, z[i]);
  highest = warp_max(highest);
  for (int64_t i = threadIdx.x; i < e; i += kWarpSize) sum += p[i] = expf(z[i] - highest);
  const float inverse = 1.0f / warp_sum(sum);
  for (int64_t i = threadIdx.x; i < e; i += kWarpSize) {
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
    float* stats = a.stats + r * kRouteStats;
    stats[kRmsHidden] = rms_x;
    stats[kRmsHistory] = rms_h;
    stats[kRho] = rho;
    stats[kHiddenVariance] = variance_o;
    stats[kHistoryVariance] = variance_r;
  }
}

// dz, the gradient of the logits through both outputs, and rho * dz (null without history).
template <typename T>
__global__ void logit_gradient(int64_t rows, int64_t e, const float* dlogits, const float* dprobs,
                               const float* probs, const float* stats, T* dz, T* scaled) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kRouteWarps + threadIdx.y;
  if (r >= rows) return;
  const float *dl = dlogits + r * e, *dp = dprobs + r * e, *p = probs + r * e;
  float dot = 0;
  for (int64_t i = threadIdx.x; i < e; i += kWarpSize) dot += dp[i] * p[i];
  dot = warp_sum(dot);
  for (int64_t i = threadIdx.x; i < e; i += kWarpSize) {
    const float g = dl[i] + p[i] * (dp[i] - dot);
    dz[r * e + i] = static_cast<T>(g);
    if (scaled) scaled[r * e + i] = static_cast<T>(stats[r * kRouteStats + kRho] * g);
  }
}

}  // namespace hero::ops::cuda
