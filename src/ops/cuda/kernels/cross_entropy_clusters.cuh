#pragma once
// Losses of a chunk of logits with the gradient in place, as losses_and_gradients of cross_entropy.cuh, but
// each logit is read once: the blocks of a cluster keep a row in shared memory. All of them have read their
// part before one writes. Compute capability 9.0 and later.
#ifdef __CUDACC__
#include <cuda_pipeline.h>
#endif

#include "ops/cuda/kernels/cluster.cuh"
#include "ops/cuda/kernels/cross_entropy.cuh"

namespace hero::ops::cuda {

inline constexpr int kRowThreads = 256;
/// Bytes of a row that a block keeps at most, unless the largest cluster needs more: three blocks then share
/// a multiprocessor.
inline constexpr int64_t kRowPartBytes = int64_t{64} << 10;

/// Of the warps of a block, and of the blocks of a cluster. In dynamic shared memory, before the part of the
/// row.
struct RowSums {
  LogSum warps[kRowThreads / kWarpSize], blocks[kMaxClusterBlocks];
};

/// How a cluster divides a row among its blocks: in turn, kRowThreads vectors at a time.
struct RowParts {
  int blocks;
  int64_t bytes;  // dynamic shared memory per block
};

/// The smallest cluster whose parts take at most kRowPartBytes, or the largest one. n: elements per vector.
inline RowParts row_parts(int64_t vocabulary, int n) {
  for (int blocks = 1;; blocks *= 2) {
    const int64_t tile = int64_t{kRowThreads} * n, tiles = (vocabulary + blocks * tile - 1) / (blocks * tile),
                  bytes = tiles * tile * static_cast<int64_t>(sizeof(float));
    if (bytes <= kRowPartBytes || blocks == kMaxClusterBlocks)
      return {blocks, static_cast<int64_t>(sizeof(RowSums)) + bytes};
  }
}

/// Joins the values of all blocks of the cluster, by way of `sums` in the shared memory of each.
__device__ __forceinline__ LogSum cluster_join(LogSum own, LogSum (&sums)[kMaxClusterBlocks]) {
  const int blocks = cluster_blocks(), thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  if (thread < blocks) *in_block(&sums[cluster_rank()], thread) = own;
  synchronize_cluster();
  return warp_join(lane < blocks ? sums[lane] : empty_sum());
}

/// e^x; for x <= 0 the error is below 1e-7 |x| e^x + 2e-7 e^x.
__device__ __forceinline__ float fast_exp(float x) {
  constexpr float kLog2E = 1.44269504f;
  return exp2f(x * kLog2E);
}

// Grid: one cluster per row, of row_parts(V, n).blocks blocks with so many bytes of dynamic shared memory. T
// is the gradient's type; n divides V.
template <int n, typename T>
__global__ void __launch_bounds__(kRowThreads) losses_and_gradients_in_clusters(CrossEntropyParams a) {
  const int blocks = cluster_blocks(), rank = cluster_rank(), width = static_cast<int>(a.vocabulary);
  const int64_t row = blockIdx.x / blocks, target = a.targets[row];
  check_target(target, a.vocabulary);
  float* z = a.logits + row * a.vocabulary;
  T* out = reinterpret_cast<T*>(z);
  // This thread's vectors: columns `first`, `first` + `stride`, ... of the row, kept kTile elements apart.
  constexpr int kTile = kRowThreads * n;
  const int first = (rank * kRowThreads + static_cast<int>(threadIdx.x)) * n, stride = blocks * kTile;
  auto& sums = *reinterpret_cast<RowSums*>(dynamic_shared());
  float* kept = reinterpret_cast<float*>(dynamic_shared() + sizeof(RowSums)) + threadIdx.x * n;
  if (target < 0) {
    for (int c = first; c < width; c += stride) store_rounded(out + c, Vector<float, n>{});
    if (rank == 0 && threadIdx.x == 0) a.losses[row] = 0.0f;
    return;
  }
  float* end = kept;
  for (int c = first; c < width; c += stride, end += kTile)
    __pipeline_memcpy_async(end, z + c, n * sizeof(float));
  __pipeline_commit();
  const float hit = z[target];
  synchronize_cluster();  // all blocks have started: their shared memory may be written
  __pipeline_wait_prior(0);

  LogSum own = empty_sum();
  for (const float* from = kept; from < end; from += kTile) {
    const auto v = load<n>(from);
    HERO_UNROLL
    for (int i = 0; i < n; ++i) own.highest = fmaxf(own.highest, v.value[i]);
  }
  for (float* at = kept; at < end; at += kTile) {
    auto v = load<n>(at);
    HERO_UNROLL
    for (int i = 0; i < n; ++i) own.sum += v.value[i] = fast_exp(v.value[i] - own.highest);
    *reinterpret_cast<Vector<float, n>*>(at) = v;
  }
  const float highest = own.highest;
  own = cluster_join(block_join<kRowThreads>(own, sums.warps), sums.blocks);
  if (rank == 0 && threadIdx.x == 0) a.losses[row] = logf(own.sum) - (hit - own.highest);

  const float factor = expf(highest - own.highest) / own.sum;
  const float* from = kept;
  const int hit_column = static_cast<int>(target);
  for (int c = first; c < width; c += stride, from += kTile) {
    auto v = load<n>(from);
    HERO_UNROLL
    for (int i = 0; i < n; ++i) v.value[i] = v.value[i] * factor - (c + i == hit_column ? 1.0f : 0.0f);
    store_rounded(out + c, v);
  }
}

}  // namespace hero::ops::cuda
