#pragma once
// RMSNorm: one warp per row for the forward pass and the input gradient. The weight gradient reduces over all
// rows in a fixed order: each block sums a strip of rows for some columns, a second kernel sums the strips.
#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

inline constexpr int kNormWarps = 4;     // per block, one row each
inline constexpr int kStripWarps = 8;    // per block that sums a strip, every eighth row each
inline constexpr int kStripColumns = 4;  // per lane

template <typename T>
struct RmsNormParams {
  int64_t rows, d;
  const T *x, *w, *dy;
  const T* addend;  // or null; forward: added to x and stored to `sum`; backward: added to dx
  float eps;
  float* rstd;   // [rows], 1 / sqrt(mean(x^2) + eps): written forward, read backward
  T *sum, *out;  // out: y, or dx
};

template <typename T, int n>
__device__ __forceinline__ void add(Vector<float, n>& to, const T* from) {
  const auto v = load_fp32<n>(from);
  HERO_UNROLL
  for (int i = 0; i < n; ++i) to.value[i] += v.value[i];
}

template <int n, typename T>
__global__ void norm_forward(RmsNormParams<T> a) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kNormWarps + threadIdx.y;
  if (r >= a.rows) return;
  const T* x = a.x + r * a.d;
  float squares = 0;
  for (int64_t c = threadIdx.x * n; c < a.d; c += kWarpSize * n) {
    auto v = load_fp32<n>(x + c);
    if (a.addend) {
      add(v, a.addend + r * a.d + c);
      HERO_UNROLL
      for (int i = 0; i < n; ++i) v.value[i] = static_cast<float>(static_cast<T>(v.value[i]));
      store_rounded(a.sum + r * a.d + c, v);
    }
    HERO_UNROLL
    for (int i = 0; i < n; ++i) squares += v.value[i] * v.value[i];
  }
  const float rstd = 1.0f / sqrtf(warp_sum(squares) / a.d + a.eps);
  if (threadIdx.x == 0) a.rstd[r] = rstd;
  const T* normed = a.addend ? a.sum + r * a.d : x;  // each lane reads only what it wrote
  for (int64_t c = threadIdx.x * n; c < a.d; c += kWarpSize * n) {
    auto v = load_fp32<n>(normed + c);
    const auto w = load_fp32<n>(a.w + c);
    HERO_UNROLL
    for (int i = 0; i < n; ++i) v.value[i] = v.value[i] * rstd * w.value[i];
    store_rounded(a.out + r * a.d + c, v);
  }
}

// dx = (dn - normed * mean(dn * normed)) * rstd + addend with dn = dy * w and normed = x * rstd.
template <int n, typename T>
__global__ void norm_backward(RmsNormParams<T> a) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kNormWarps + threadIdx.y;
  if (r >= a.rows) return;
  const T *x = a.x + r * a.d, *dy = a.dy + r * a.d;
  const float rstd = a.rstd[r];
  float dot = 0;
  for (int64_t c = threadIdx.x * n; c < a.d; c += kWarpSize * n) {
    const auto v = load_fp32<n>(x + c), g = load_fp32<n>(dy + c), w = load_fp32<n>(a.w + c);
    HERO_UNROLL
    for (int i = 0; i < n; ++i) dot += g.value[i] * w.value[i] * (v.value[i] * rstd);
  }
  const float mean = warp_sum(dot) / a.d;
  for (int64_t c = threadIdx.x * n; c < a.d; c += kWarpSize * n) {
    auto v = load_fp32<n>(x + c);
    const auto g = load_fp32<n>(dy + c), w = load_fp32<n>(a.w + c);
    HERO_UNROLL
    for (int i = 0; i < n; ++i) v.value[i] = (g.value[i] * w.value[i] - v.value[i] * rstd * mean) * rstd;
    if (a.addend) add(v, a.addend + r * a.d + c);
    store_rounded(a.out + r * a.d + c, v);
  }
}

// partial [strips, d]: the sum of dy * x * rstd over a strip's rows. Grid: columns / (32 * n), strips.
template <int n, typename T>
__global__ void norm_weight_strips(int64_t rows, int64_t d, int64_t strip, const T* dy, const T* x,
                                   const float* rstd, float* partial) {
  __shared__ float sums[kStripWarps][kWarpSize * n];
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * kWarpSize + threadIdx.x) * n,
                first = blockIdx.y * strip;
  const int64_t end = first + strip < rows ? first + strip : rows;
  Vector<float, n> sum{};
  if (c < d) {
    for (int64_t r = first + threadIdx.y; r < end; r += kStripWarps) {
      const auto g = load_fp32<n>(dy + r * d + c), v = load_fp32<n>(x + r * d + c);
      HERO_UNROLL
      for (int i = 0; i < n; ++i) sum.value[i] += g.value[i] * (v.value[i] * rstd[r]);
    }
  }
  HERO_UNROLL
  for (int i = 0; i < n; ++i) sums[threadIdx.y][threadIdx.x * n + i] = sum.value[i];
  __syncthreads();
  if (threadIdx.y > 0 || c >= d) return;
  for (int warp = 1; warp < kStripWarps; ++warp) {
    HERO_UNROLL
    for (int i = 0; i < n; ++i) sum.value[i] += sums[warp][threadIdx.x * n + i];
  }
  store(partial + blockIdx.y * d + c, sum);
}

// Grid: columns / 32.
inline __global__ void add_strips(int64_t strips, int64_t d, const float* partial, float* dw) {
  __shared__ float sums[kStripWarps][kWarpSize];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kWarpSize + threadIdx.x;
  float sum = 0;
  for (int64_t s = threadIdx.y; s < strips && c < d; s += kStripWarps) sum += partial[s * d + c];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || c >= d) return;
  for (int warp = 1; warp < kStripWarps; ++warp) sum += sums[warp][threadIdx.x];
  dw[c] = sum;
}

}  // namespace hero::ops::cuda
