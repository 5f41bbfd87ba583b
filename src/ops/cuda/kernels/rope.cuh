#pragma once
// Rotary embedding of strided rows, such as a column range of a wider tensor.
#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

inline constexpr int kRopeThreads = 256;

template <typename T>
struct RopeParams {
  int64_t batch, positions, heads, half;   // x is [B, S, H, 2 * half]
  int64_t ld_batch, ld_position, ld_head;  // strides of x
  const T* x;
  const float *cos, *sin;  // [S, half]
  float sign;              // -1 inverts the rotation
  T* y;                    // contiguous
};

// Grid: one thread per n pairs, (2i, 2i + 1) if interleaved, else (i, i + half).
template <int n, bool interleaved, typename T>
__global__ void rotate(RopeParams<T> a) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRopeThreads + threadIdx.x, per_row = a.half / n;
  const int64_t row = i / per_row, pair = (i - row * per_row) * n;
  if (row >= a.batch * a.positions * a.heads) return;
  const int64_t token = row / a.heads, h = row - token * a.heads, b = token / a.positions,
                s = token - b * a.positions;
  const T* x = a.x + b * a.ld_batch + s * a.ld_position + h * a.ld_head;
  T* y = a.y + row * 2 * a.half;
  const auto c = load<n>(a.cos + s * a.half + pair), d = load<n>(a.sin + s * a.half + pair);
  Vector<float, 2 * n> v;
  if constexpr (interleaved && n > 1) {
    v = load_fp32<2 * n>(x + 2 * pair);
  } else if constexpr (interleaved) {  // x may begin at an odd column
    v = {static_cast<float>(x[2 * pair]), static_cast<float>(x[2 * pair + 1])};
  } else {
    const auto low = load_fp32<n>(x + pair), high = load_fp32<n>(x + a.half + pair);
    HERO_UNROLL
    for (int j = 0; j < n; ++j) {
      v.value[2 * j] = low.value[j];
      v.value[2 * j + 1] = high.value[j];
    }
  }
  Vector<float, n> low, high;
  HERO_UNROLL
  for (int j = 0; j < n; ++j) {
    const float p = v.value[2 * j], q = v.value[2 * j + 1], sine = a.sign * d.value[j];
    low.value[j] = p * c.value[j] - q * sine;
    high.value[j] = p * sine + q * c.value[j];
  }
  if constexpr (interleaved) {
    HERO_UNROLL
    for (int j = 0; j < n; ++j) {
      v.value[2 * j] = low.value[j];
      v.value[2 * j + 1] = high.value[j];
    }
    store_rounded(y + 2 * pair, v);
  } else {
    store_rounded(y + pair, low);
    store_rounded(y + a.half + pair, high);
  }
}

}  // namespace hero::ops::cuda
