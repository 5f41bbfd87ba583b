#pragma once
// Clusters of thread blocks, which reach each other's shared memory: compute capability 9.0 and later.
// Emulated on the CPU by tests/cuda/emulate_cluster.h.
#ifdef __CUDACC__
#include <cooperative_groups.h>
#endif

namespace hero::ops::cuda {

inline constexpr int kMaxClusterBlocks = 8;  // the largest size that every such device supports

#ifdef __CUDACC__
__device__ __forceinline__ int cluster_blocks() {
#if __CUDA_ARCH__ >= 900
  return static_cast<int>(cooperative_groups::this_cluster().num_blocks());
#else
  __trap();
  return 1;
#endif
}

/// Index of this block in its cluster.
__device__ __forceinline__ int cluster_rank() {
#if __CUDA_ARCH__ >= 900
  return static_cast<int>(cooperative_groups::this_cluster().block_rank());
#else
  return 0;
#endif
}

/// A barrier of all threads of the cluster, which also makes their writes to shared memory visible.
__device__ __forceinline__ void synchronize_cluster() {
#if __CUDA_ARCH__ >= 900
  cooperative_groups::this_cluster().sync();
#endif
}

/// The address of a variable in shared memory, in the shared memory of block `rank` of the cluster.
template <typename T>
__device__ __forceinline__ T* in_block([[maybe_unused]] T* shared, [[maybe_unused]] int rank) {
#if __CUDA_ARCH__ >= 900
  return cooperative_groups::this_cluster().map_shared_rank(shared, rank);
#else
  return shared;
#endif
}
#endif

}  // namespace hero::ops::cuda
