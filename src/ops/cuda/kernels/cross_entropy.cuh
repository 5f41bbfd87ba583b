#pragma once
// Losses of a chunk of logits, and the logits turned into their gradient where they lie. The gradient's type
// may be narrower than the logits': row r of the result then starts where row r of the logits does and fills
// its front part. A block goes over its row from the front; what it writes has been read by everybody,
// because it reads a tile, waits, and writes a tile that ends no later.
#include <cstdio>

#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

inline constexpr int kLossThreads = 512;

struct LossWork {
  int64_t vocabulary;
  float* logits;           // [rows, V]
  const int64_t* targets;  // [rows], negative: ignored
  float* losses;           // [rows]
};

/// A maximum, and the sum of e^(z - maximum).
struct LogSum {
  float highest, sum;
};

// An empty part has sum 0; its maximum is lower than any logit, and finite.
__device__ __forceinline__ LogSum join(LogSum a, LogSum b) {
  const float highest = fmaxf(a.highest, b.highest);
  return {highest, a.sum * expf(a.highest - highest) + b.sum * expf(b.highest - highest)};
}

__device__ __forceinline__ LogSum warp_join(LogSum v) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    v = join(v, {__shfl_xor_sync(kAll, v.highest, offset), __shfl_xor_sync(kAll, v.sum, offset)});
  return v;
}

// Grid: a block per row. T is the gradient's type; n divides V.
template <int n, bool gradients, typename T>
__global__ void __launch_bounds__(kLossThreads) losses_and_gradients(LossWork a) {
  constexpr int kWarps = kLossThreads / kLanes, kTile = kLossThreads * n;
  __shared__ LogSum parts[kWarps];
  float* z = a.logits + blockIdx.x * a.vocabulary;
  const int64_t target = a.targets[blockIdx.x];
  if (target >= a.vocabulary) {
    printf("linear_cross_entropy: targets must be below V = %lld, got %lld\n",
           static_cast<long long>(a.vocabulary), static_cast<long long>(target));
    __trap();
  }
  LogSum own{-3e38f, 0.0f};
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
  own = warp_join(own);
  if (threadIdx.x % kLanes == 0) parts[threadIdx.x / kLanes] = own;
  const float hit = target >= 0 ? z[target] : 0.0f;
  __syncthreads();
  const int lane = threadIdx.x % kLanes;
  own = warp_join(lane < kWarps ? parts[lane] : LogSum{-3e38f, 0.0f});
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
