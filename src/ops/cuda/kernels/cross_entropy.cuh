#pragma once
// Losses of a chunk of logits, with the gradient of the logits in place. If the gradient's type is narrower,
// row r of the gradient fills the front of row r of the logits. Each thread block processes its row from the
// front: it reads a tile, synchronizes, and writes a tile that ends no later, so it never overwrites unread
// logits.
#include <cstdio>

#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

inline constexpr int kLossThreads = 512;

struct CrossEntropyParams {
  int64_t vocabulary;
  float* logits;           // [rows, V]
  const int64_t* targets;  // [rows], negative: ignored
  float* losses;           // [rows]
};

/// A maximum, and the sum of e^(z - maximum).
struct LogSum {
  float highest, sum;
};

/// Of an empty range: a finite maximum below any logit.
__device__ constexpr LogSum empty_sum() { return {-3e38f, 0.0f}; }

__device__ __forceinline__ LogSum join(LogSum a, LogSum b) {
  const float highest = fmaxf(a.highest, b.highest);
  return {highest, a.sum * expf(a.highest - highest) + b.sum * expf(b.highest - highest)};
}

__device__ __forceinline__ LogSum warp_join(LogSum v) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2)
    v = join(v, {__shfl_xor_sync(kFullMask, v.highest, offset), __shfl_xor_sync(kFullMask, v.sum, offset)});
  return v;
}

/// Joins the values of all threads of a block, by way of `parts` in shared memory.
template <int threads>
__device__ __forceinline__ LogSum block_join(LogSum own, LogSum (&parts)[threads / kWarpSize]) {
  own = warp_join(own);
  if (threadIdx.x % kWarpSize == 0) parts[threadIdx.x / kWarpSize] = own;
  __syncthreads();
  const int lane = threadIdx.x % kWarpSize;
  return warp_join(lane < threads / kWarpSize ? parts[lane] : empty_sum());
}

/// Ends the kernel if a row's target is not below V.
__device__ __forceinline__ void check_target(int64_t target, int64_t vocabulary) {
  if (target < vocabulary) return;
  printf("linear_cross_entropy: targets must be below V = %lld, got %lld\n",
         static_cast<long long>(vocabulary), static_cast<long long>(target));
  __trap();
}

// Grid: one block per row. T is the gradient's type; n divides V.
template <int n, bool gradients, typename T>
__global__ void __launch_bounds__(kLossThreads) losses_and_gradients(CrossEntropyParams a) {
  constexpr int kTile = kLossThreads * n;
  __shared__ LogSum parts[kLossThreads / kWarpSize];
  float* z = a.logits + blockIdx.x * a.vocabulary;
  const int64_t target = a.targets[blockIdx.x];
  check_target(target, a.vocabulary);
  LogSum own = empty_sum();
  for (int64_t c = threadIdx.x * n; c < a.vocabulary && target >= 0; c += kTile) {
    const auto v = load<n>(z + c);
    float highest = own.highest;
    HERO_UNROLL
    for (int i = 0; i < n; ++i) highest = fmaxf(highest, v.value[i]);
    own.sum *= expf(own.highest - highest);
    own.highest = highest;
    HERO_UNROLL
    for (int i = 0; i < n; ++i) own.sum += expf(v.value[i] - highest);
  }
  const float hit = target >= 0 ? z[target] : 0.0f;
  own = block_join<kLossThreads>(own, parts);
  const float inverse = 1.0f / own.sum;
  if (threadIdx.x == 0) a.losses[blockIdx.x] = target >= 0 ? logf(own.sum) - (hit - own.highest) : 0.0f;
  if constexpr (gradients) {
    T* out = reinterpret_cast<T*>(z);
    for (int64_t first = 0; first < a.vocabulary; first += kTile) {
      const int64_t c = first + threadIdx.x * n;
      Vector<float, n> v{};
      if (c < a.vocabulary && target >= 0) {
        v = load<n>(z + c);
        HERO_UNROLL
        for (int i = 0; i < n; ++i)
          v.value[i] = expf(v.value[i] - own.highest) * inverse - (c + i == target ? 1.0f : 0.0f);
      }
      __syncthreads();
      if (c < a.vocabulary) store_rounded(out + c, v);
    }
  }
}

}  // namespace hero::ops::cuda
