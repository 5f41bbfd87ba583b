#pragma once
// Sum of squares of fp32 tensors, in a fixed order: each block sums one chunk, a second kernel of one block
// sums the chunks. fp32 sums of at most 16 squares are added in fp64, so the relative error is below 1e-6.
#include "ops/cuda/kernels/chunks.cuh"

namespace hero::ops::cuda {

inline constexpr int kSquaresThreads = 256;
inline constexpr int kSquaresChunk = 1 << 15;
inline constexpr int kSquaresTensors = 128;  // per launch
inline constexpr int kSquaresRun = 4;        // vectors that one thread loads at once and sums in fp32
inline constexpr int kTotalThreads = 1024;   // of the block that adds the chunks

using SquaresTable = ChunkTable<const float*, kSquaresTensors, kSquaresChunk>;

// This thread's part of the sum over [x, x + size), n elements per vector; n divides size.
template <int n>
__device__ __forceinline__ double sum_squares(const float* x, int size) {
  double sum = 0;
  for (int first = threadIdx.x * n; first < size; first += kSquaresThreads * n * kSquaresRun) {
    Vector<float, n> v[kSquaresRun];
    HERO_UNROLL
    for (int j = 0; j < kSquaresRun; ++j) {
      const int i = first + j * kSquaresThreads * n;
      v[j] = i < size ? load<n>(x + i) : Vector<float, n>{};
    }
    float run = 0;
    HERO_UNROLL
    for (int k = 0; k < n; ++k) {
      float squares = 0;
      HERO_UNROLL
      for (int j = 0; j < kSquaresRun; ++j) squares = fmaf(v[j].value[k], v[j].value[k], squares);
      run += squares;
    }
    sum += run;
  }
  return sum;
}

// Sum over the block, valid in thread 0.
template <int threads>
__device__ __forceinline__ double block_sum(double v) {
  __shared__ double sums[threads / kWarpSize];
  v = warp_sum(v);
  if (threadIdx.x % kWarpSize == 0) sums[threadIdx.x / kWarpSize] = v;
  __syncthreads();
  if (threadIdx.x > 0) return 0;
  for (int warp = 1; warp < threads / kWarpSize; ++warp) v += sums[warp];
  return v;
}

// partial [chunks]. Grid: one block per chunk.
inline __global__ void __launch_bounds__(kSquaresThreads)
    squares_of_chunks(SquaresTable table, double* partial) {
  const Chunk chunk = table.of_block(blockIdx.x);
  const float* x = table.tensor[chunk.tensor] + chunk.begin;
  constexpr int n = kVectorSize<float>;
  const int middle = is_aligned(x, 16) ? chunk.size - chunk.size % n : 0;
  const double own = sum_squares<n>(x, middle) + sum_squares<1>(x + middle, chunk.size - middle);
  const double sum = block_sum<kSquaresThreads>(own);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// One block.
inline __global__ void __launch_bounds__(kTotalThreads)
    add_chunks(int64_t chunks, const double* partial, double* total) {
  double own = 0;
  for (int64_t i = threadIdx.x; i < chunks; i += kTotalThreads) own += partial[i];
  const double sum = block_sum<kTotalThreads>(own);
  if (threadIdx.x == 0) *total = sum;
}

}  // namespace hero::ops::cuda
