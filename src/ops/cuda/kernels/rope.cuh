#pragma once
// Rotary embedding of strided rows, such as a column range of a wider tensor.
#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

inline constexpr int kRopeThreads = 256;
inline constexpr int kRopePairs = 4;  // of a vectorized thread: 16 bytes of cosines and of interleaved bf16

template <typename T>
struct RopeParams {
  int64_t batch, positions, heads, half;   // x is [B, S, H, 2 * half]
  int64_t ld_batch, ld_position, ld_head;  // strides of x
  const T* x;
  const float *cos, *sin;  // [S, half]
  float sign;              // -1 inverts the rotation
  T* y;                    // contiguous
};

/// n pairs of features, in fp32.
template <int n>
struct Pairs {
  Vector<float, n> first, second;
};

/// Pairs `pair` to pair + n - 1 of a row: pair i is (2i, 2i + 1) if interleaved, else (i, i + half). With n =
/// 1 the row may begin at an odd column.
template <int n, bool interleaved, typename T>
__device__ __forceinline__ Pairs<n> load_pairs(const T* x, int64_t half, int64_t pair) {
  if constexpr (!interleaved) {
    return {load_fp32<n>(x + pair), load_fp32<n>(x + half + pair)};
  } else if constexpr (n == 1) {
    return {load_fp32<1>(x + 2 * pair), load_fp32<1>(x + 2 * pair + 1)};
  } else {
    const auto v = load_fp32<2 * n>(x + 2 * pair);
    Pairs<n> pairs;
    HERO_UNROLL
    for (int j = 0; j < n; ++j) {
      pairs.first.value[j] = v.value[2 * j];
      pairs.second.value[j] = v.value[2 * j + 1];
    }
    return pairs;
  }
}

template <bool interleaved, int n, typename T>
__device__ __forceinline__ void store_pairs(T* y, int64_t half, int64_t pair, const Pairs<n>& pairs) {
  if constexpr (!interleaved) {
    store_rounded(y + pair, pairs.first);
    store_rounded(y + half + pair, pairs.second);
  } else if constexpr (n == 1) {
    store_rounded(y + 2 * pair, pairs.first);
    store_rounded(y + 2 * pair + 1, pairs.second);
  } else {
    Vector<float, 2 * n> v;
    HERO_UNROLL
    for (int j = 0; j < n; ++j) {
      v.value[2 * j] = pairs.first.value[j];
      v.value[2 * j + 1] = pairs.second.value[j];
    }
    store_rounded(y + 2 * pair, v);
  }
}

/// Sign -1 inverts the rotation.
template <int n>
__device__ __forceinline__ Pairs<n> rotate_pairs(const Pairs<n>& x, const Vector<float, n>& cos,
                                                 const Vector<float, n>& sin, float sign) {
  Pairs<n> y;
  HERO_UNROLL
  for (int j = 0; j < n; ++j) {
    const float p = x.first.value[j], q = x.second.value[j], sine = sign * sin.value[j];
    y.first.value[j] = p * cos.value[j] - q * sine;
    y.second.value[j] = p * sine + q * cos.value[j];
  }
  return y;
}

// Grid: one thread per n pairs.
template <int n, bool interleaved, typename T>
__global__ void rotate(RopeParams<T> a) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRopeThreads + threadIdx.x, per_row = a.half / n;
  const int64_t row = i / per_row, pair = (i - row * per_row) * n;
  if (row >= a.batch * a.positions * a.heads) return;
  const int64_t token = row / a.heads, h = row - token * a.heads, b = token / a.positions,
                s = token - b * a.positions;
  const T* x = a.x + b * a.ld_batch + s * a.ld_position + h * a.ld_head;
  const auto cos = load<n>(a.cos + s * a.half + pair), sin = load<n>(a.sin + s * a.half + pair);
  store_pairs<interleaved>(a.y + row * 2 * a.half, a.half, pair,
                           rotate_pairs(load_pairs<n, interleaved>(x, a.half, pair), cos, sin, a.sign));
}

}  // namespace hero::ops::cuda
