#pragma once
// Attention of new positions over KV caches, one thread block per position and query head. Processes keys in
// chunks of one score per thread with an online softmax (arXiv 1805.02867): each warp computes dot products
// with keys, then each thread accumulates a few columns of the values of every `slices`-th key; slices are
// summed at the end in a fixed order.
#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

inline constexpr int kAttentionWarps = 8;                              // per block
inline constexpr int kAttentionThreads = kAttentionWarps * kWarpSize;  // and keys per chunk
inline constexpr int kMaxKeyWidth = 1024;
inline constexpr int kMaxSequences = 32;  // per launch: passed as kernel arguments

template <typename T>
struct CachedSequence {
  const T *keys, *values;  // [positions, Hkv, .], last dimension contiguous
  int64_t ld_key, ld_key_head, ld_value, ld_value_head;
  int64_t groups;            // query heads per KV head
  int64_t positions, count;  // cached positions; the last `count` have a query
  int64_t first;             // row of the first query
};

template <typename T>
struct CachedAttentionParams {
  int64_t qk, v;
  const T* q;  // [rows, H, qk]
  int64_t ld_q, ld_q_head;
  float scale;
  T* out;  // [rows, H, v] contiguous
  CachedSequence<T> sequences[kMaxSequences];
};

// Scaled scores q k^T of the keys in the chunk.
template <int n, typename T>
__device__ __forceinline__ void score_chunk(const float* query, int64_t qk, const T* keys, int64_t ld_key,
                                            int length, float scale, float* scores) {
  for (int j = threadIdx.y; j < length; j += kAttentionWarps) {
    const T* key = keys + j * ld_key;
    float dot = 0;
    for (int64_t c = threadIdx.x * n; c < qk; c += kWarpSize * n) {
      const auto k = load_fp32<n>(key + c);
      HERO_UNROLL
      for (int i = 0; i < n; ++i) dot += query[c + i] * k.value[i];
    }
    dot = warp_sum(dot);
    if (threadIdx.x == 0) scores[j] = dot * scale;
  }
}

// Grid: rows, H. Block: kWarpSize, kAttentionWarps. v / n at most kAttentionThreads, qk at most kMaxKeyWidth.
template <int n, typename T>
__global__ void cached_attention_kernel(CachedAttentionParams<T> a) {
  __shared__ float query[kMaxKeyWidth], scores[kAttentionThreads], sums[kAttentionThreads * n];
  const int64_t row = blockIdx.x, h = blockIdx.y;
  const int thread = threadIdx.y * kWarpSize + threadIdx.x;
  int which = 0;
  while (row >= a.sequences[which].first + a.sequences[which].count) ++which;
  const CachedSequence<T> sequence = a.sequences[which];
  const int64_t seen = sequence.positions - sequence.count + row - sequence.first + 1,
                g = h / sequence.groups;
  const T *keys = sequence.keys + g * sequence.ld_key_head,
          *values = sequence.values + g * sequence.ld_value_head;
  for (int64_t c = thread; c < a.qk; c += kAttentionThreads)
    query[c] = static_cast<float>(a.q[row * a.ld_q + h * a.ld_q_head + c]);
  __syncthreads();

  const int vectors = static_cast<int>(a.v / n), slices = kAttentionThreads / vectors;
  const int slice = thread / vectors, column = (thread - slice * vectors) * n;
  float highest = -INFINITY, total = 0;
  Vector<float, n> sum{};
  for (int64_t begin = 0; begin < seen; begin += kAttentionThreads) {
    const int length = static_cast<int>(seen - begin < kAttentionThreads ? seen - begin : kAttentionThreads);
    score_chunk<n>(query, a.qk, keys + begin * sequence.ld_key, sequence.ld_key, length, a.scale, scores);
    __syncthreads();
    float chunk_highest = highest;  // every warp reads all scores
    for (int j = threadIdx.x; j < length; j += kWarpSize) chunk_highest = fmaxf(chunk_highest, scores[j]);
    chunk_highest = warp_max(chunk_highest);
    const float shrunk = expf(highest - chunk_highest);
    highest = chunk_highest;
    __syncthreads();
    if (thread < length) scores[thread] = expf(scores[thread] - highest);
    __syncthreads();
    float chunk_total = 0;
    for (int j = threadIdx.x; j < length; j += kWarpSize) chunk_total += scores[j];
    total = total * shrunk + warp_sum(chunk_total);
    HERO_UNROLL
    for (int i = 0; i < n; ++i) sum.value[i] *= shrunk;
    for (int j = slice; slice < slices && j < length; j += slices) {
      const auto v = load_fp32<n>(values + (begin + j) * sequence.ld_value + column);
      HERO_UNROLL
      for (int i = 0; i < n; ++i) sum.value[i] += scores[j] * v.value[i];
    }
    __syncthreads();
  }
  HERO_UNROLL
  for (int i = 0; i < n; ++i) sums[thread * n + i] = sum.value[i];
  __syncthreads();
  if (thread >= vectors) return;
  for (int s = 1; s < slices; ++s) {
    HERO_UNROLL
    for (int i = 0; i < n; ++i) sum.value[i] += sums[(s * vectors + thread) * n + i];
  }
  const float inverse = 1.0f / total;
  HERO_UNROLL
  for (int i = 0; i < n; ++i) sum.value[i] *= inverse;
  store_rounded(a.out + (row * gridDim.y + h) * a.v + column, sum);
}

}  // namespace hero::ops::cuda
