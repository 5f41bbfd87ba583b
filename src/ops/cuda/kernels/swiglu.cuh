#pragma once
// silu(g) * u and its gradient, computed in fp32 and rounded once.
#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

inline constexpr int kSwigluThreads = 256;

template <typename T>
struct SwigluParams {
  int64_t rows, f;
  const T* gate_up;     // [rows, 2f]
  const int64_t* used;  // rows from *used on are padding: not read, results zero; null: none
  const T* dy;          // [rows, f], backward only
  T* y;                 // [rows, f]; in the backward pass the recomputed activation, or null
  T* dgate_up;          // [rows, 2f], backward only
};

// For very negative x, e^-x is infinite and the result 0.
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Grid: one thread per n consecutive elements of a row.
template <int n, typename T>
__global__ void swiglu_forward(SwigluParams<T> a) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kSwigluThreads + threadIdx.x, per_row = a.f / n;
  const int64_t r = i / per_row, c = (i - r * per_row) * n;
  if (r >= a.rows) return;
  Vector<float, n> y{};
  if (!a.used || r < *a.used) {
    const auto g = load_fp32<n>(a.gate_up + 2 * r * a.f + c),
               u = load_fp32<n>(a.gate_up + (2 * r + 1) * a.f + c);
    HERO_UNROLL
    for (int j = 0; j < n; ++j) y.value[j] = g.value[j] * sigmoid(g.value[j]) * u.value[j];
  }
  store_rounded(a.y + r * a.f + c, y);
}

template <int n, typename T>
__global__ void swiglu_backward(SwigluParams<T> a) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kSwigluThreads + threadIdx.x, per_row = a.f / n;
  const int64_t r = i / per_row, c = (i - r * per_row) * n;
  if (r >= a.rows) return;
  Vector<float, n> y{}, dg{}, du{};
  if (!a.used || r < *a.used) {
    const auto g = load_fp32<n>(a.gate_up + 2 * r * a.f + c),
               u = load_fp32<n>(a.gate_up + (2 * r + 1) * a.f + c), dy = load_fp32<n>(a.dy + r * a.f + c);
    HERO_UNROLL
    for (int j = 0; j < n; ++j) {
      const float s = sigmoid(g.value[j]), silu = g.value[j] * s;
      y.value[j] = silu * u.value[j];
      dg.value[j] = dy.value[j] * u.value[j] * (s + silu * (1.0f - s));
      du.value[j] = dy.value[j] * silu;
    }
  }
  store_rounded(a.dgate_up + 2 * r * a.f + c, dg);
  store_rounded(a.dgate_up + (2 * r + 1) * a.f + c, du);
  if (a.y) store_rounded(a.y + r * a.f + c, y);
}

}  // namespace hero::ops::cuda
