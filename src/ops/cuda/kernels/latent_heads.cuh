#pragma once
// Queries and keys of latent attention from their projections, and the gradients. One block per token; its
// threads copy and rotate vectors of all heads.
#include "ops/cuda/kernels/rope.cuh"

namespace hero::ops::cuda {

inline constexpr int kLatentThreads = 64;  // that copy and rotate
inline constexpr int kLatentBatch = 4;     // vectors that a thread loads before it stores them

struct LatentShape {
  int heads, nope, half, v_width;  // q and k are [tokens, heads, nope + 2 * half]
  unsigned positions;              // rows of the tables; token t is at position t % positions
  const float *cos, *sin;          // [positions, half]
};

template <typename T>
struct LatentForwardParams {
  LatentShape shape;
  int64_t ld_key;
  const T* queries;  // [tokens, heads, nope + 2 * half]
  const T* kv;       // [tokens, heads, nope + v_width]
  const T* key;      // [tokens, 2 * half], rows ld_key apart
  T *q, *k;
};

template <typename T>
struct LatentBackwardParams {
  LatentShape shape;
  const T *dq, *dk, *dv;  // contiguous
  T *dqueries, *dkv, *dkey;
};

/// The same columns of every head of one token, in two tensors whose heads are `ld_from` and `ld_to` apart.
template <typename T>
struct HeadColumns {
  const T* from;
  int ld_from;
  T* to;
  int ld_to;
};

/// Copies `width` columns.
template <int n, typename T>
__device__ __forceinline__ void copy_columns(HeadColumns<T> columns, int heads, int width) {
  const int per_head = width / n, count = heads * per_head;
  for (int first = threadIdx.x; first < count; first += kLatentBatch * kLatentThreads) {
    Vector<T, n> values[kLatentBatch];
    HERO_UNROLL
    for (int j = 0; j < kLatentBatch; ++j) {
      const int i = first + j * kLatentThreads, h = i / per_head;
      if (i < count) values[j] = load<n>(columns.from + h * columns.ld_from + (i - h * per_head) * n);
    }
    HERO_UNROLL
    for (int j = 0; j < kLatentBatch; ++j) {
      const int i = first + j * kLatentThreads, h = i / per_head;
      if (i < count) store(columns.to + h * columns.ld_to + (i - h * per_head) * n, values[j]);
    }
  }
}

/// Rotates 2 * half columns by the angles of one position; sign -1 inverts the rotation.
template <int n, bool interleaved, typename T>
__device__ __forceinline__ void rotate_columns(HeadColumns<T> columns, int heads, int half, const float* cos,
                                               const float* sin, float sign) {
  const int per_head = half / n, count = heads * per_head;
  for (int i = threadIdx.x; i < count; i += kLatentThreads) {
    const int h = i / per_head, pair = (i - h * per_head) * n;
    const auto x = load_pairs<n, interleaved>(columns.from + h * columns.ld_from, half, pair);
    store_pairs<interleaved>(columns.to + h * columns.ld_to, half, pair,
                             rotate_pairs(x, load<n>(cos + pair), load<n>(sin + pair), sign));
  }
}

// Vectors of n elements and of `pairs` pairs. Grid: tokens; kLatentThreads.
template <int n, int pairs, bool interleaved, typename T>
__global__ void latent_heads_forward(LatentForwardParams<T> a) {
  const auto [heads, nope, half, v_width, positions, cosines, sines] = a.shape;
  const int64_t token = blockIdx.x, position = blockIdx.x % positions;
  const int width = nope + 2 * half, kv_width = nope + v_width;
  const float *cos = cosines + position * half, *sin = sines + position * half;
  const T *queries = a.queries + token * heads * width, *kv = a.kv + token * heads * kv_width;
  T *q = a.q + token * heads * width, *k = a.k + token * heads * width;
  copy_columns<n, T>({queries, width, q, width}, heads, nope);
  copy_columns<n, T>({kv, kv_width, k, width}, heads, nope);
  rotate_columns<pairs, interleaved, T>({queries + nope, width, q + nope, width}, heads, half, cos, sin,
                                        1.0f);
  rotate_columns<pairs, interleaved, T>({a.key + token * a.ld_key, 0, k + nope, width}, heads, half, cos, sin,
                                        1.0f);
}

// The gradient of the shared key, by one warp: the sum over the heads in order, rotated back. dk begins at
// the rotary columns of the first head.
template <bool interleaved, typename T>
__device__ __forceinline__ void shared_key_gradient(const T* dk, int ld, int heads, int half,
                                                    const float* cos, const float* sin, int lane, T* dkey) {
  for (int pair = lane; pair < half; pair += kWarpSize) {
    Pairs<1> sum{};
    for (int h = 0; h < heads; ++h) {
      const auto x = load_pairs<1, interleaved>(dk + h * ld, half, pair);
      sum.first.value[0] += x.first.value[0];
      sum.second.value[0] += x.second.value[0];
    }
    store_pairs<interleaved>(dkey, half, pair,
                             rotate_pairs(sum, load<1>(cos + pair), load<1>(sin + pair), -1.0f));
  }
}

// Grid: tokens; kLatentThreads and one more warp for the shared key.
template <int n, int pairs, bool interleaved, typename T>
__global__ void latent_heads_backward(LatentBackwardParams<T> a) {
  const auto [heads, nope, half, v_width, positions, cosines, sines] = a.shape;
  const int64_t token = blockIdx.x, position = blockIdx.x % positions;
  const int width = nope + 2 * half, kv_width = nope + v_width;
  const float *cos = cosines + position * half, *sin = sines + position * half;
  const T *dq = a.dq + token * heads * width, *dk = a.dk + token * heads * width,
          *dv = a.dv + token * heads * v_width;
  T *dqueries = a.dqueries + token * heads * width, *dkv = a.dkv + token * heads * kv_width;
  if (threadIdx.x >= kLatentThreads) {
    shared_key_gradient<interleaved>(dk + nope, width, heads, half, cos, sin, threadIdx.x - kLatentThreads,
                                     a.dkey + token * 2 * half);
    return;
  }
  copy_columns<n, T>({dq, width, dqueries, width}, heads, nope);
  copy_columns<n, T>({dk, width, dkv, kv_width}, heads, nope);
  copy_columns<n, T>({dv, v_width, dkv + nope, kv_width}, heads, v_width);
  rotate_columns<pairs, interleaved, T>({dq + nope, width, dqueries + nope, width}, heads, half, cos, sin,
                                        -1.0f);
}

}  // namespace hero::ops::cuda
