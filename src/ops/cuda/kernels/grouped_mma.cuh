#pragma once
// Grouped GEMM on tensor cores: bf16 operands, fp32 accumulation, widths in multiples of 8. A thread block
// computes a 128 x 128 tile, each of its eight warps 64 x 32. Steps of 32 of the inner dimension are
// pipelined through three stages of shared memory (48 KiB): two load while the third is multiplied. 16-byte
// chunks are swizzled, so ldmatrix reads its eight rows without bank conflicts.
#include "ops/cuda/kernels/grouped.cuh"
#include "ops/cuda/kernels/mma.cuh"

namespace hero::ops::cuda {

inline constexpr int kMmaTile = 128, kMmaInner = 32, kMmaThreads = 256, kStages = 3;
inline constexpr int kChunkElements = 8;  // elements in 16 bytes
inline constexpr int kStageElements = kMmaTile * kMmaInner;

/// One operand of a step in shared memory: [outer, inner] if the inner dimension is contiguous, else [inner,
/// outer].
template <bool inner_last>
struct Step {
  static constexpr int kRows = inner_last ? kMmaTile : kMmaInner;
  static constexpr int kChunks = (inner_last ? kMmaInner : kMmaTile) / kChunkElements;  // per row

  /// Swizzled offset of a chunk. Two 64-byte rows span all banks; 256-byte rows all start at bank 0.
  static __device__ __forceinline__ int swizzled_offset(int row, int chunk) {
    const int swizzled = inner_last ? chunk ^ (row / 2 % 4) : chunk ^ (row % 8);
    return (row * kChunks + swizzled) * kChunkElements;
  }

  /// Starts the asynchronous copy of the step at `k`; elements from outer_end or inner_end on are zero.
  template <typename T>
  static __device__ __forceinline__ void fetch(T* shared, const T* x, int64_t ld, int64_t outer,
                                               int64_t outer_end, int64_t k, int64_t inner_end) {
    HERO_UNROLL
    for (int i = 0; i < kRows * kChunks / kMmaThreads; ++i) {
      const int at = i * kMmaThreads + static_cast<int>(threadIdx.x), row = at / kChunks,
                chunk = at % kChunks;
      const int64_t r = (inner_last ? outer : k) + row, c = (inner_last ? k : outer) + chunk * kChunkElements;
      const bool inside =
          r < (inner_last ? outer_end : inner_end) && c < (inner_last ? inner_end : outer_end);
      __pipeline_memcpy_async(shared + swizzled_offset(row, chunk), inside ? x + r * ld + c : x, 16,
                              inside ? 0 : 16);
    }
  }

  /// Loads four 8 x 8 matrices at (outer, k), two along `outer` and two along k; adjacent registers run along
  /// `outer` if outer_first, else along k.
  template <bool outer_first, typename T>
  static __device__ __forceinline__ void read(unsigned (&to)[4], const T* shared, int outer, int k) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize, matrix = lane / 8, within = lane % 8;
    const int o = outer + (outer_first ? matrix % 2 : matrix / 2) * 8,
              i = k + (outer_first ? matrix / 2 : matrix % 2) * 8;
    const int row = (inner_last ? o : i) + within, chunk = (inner_last ? i : o) / kChunkElements;
    load_matrices<!inner_last>(to, shared + swizzled_offset(row, chunk));
  }
};

template <GroupedLayout layout, typename T, typename Out>
__global__ void __launch_bounds__(kMmaThreads, 2) grouped_mma(GroupedGemmParams<T, Out> params) {
  static_assert(sizeof(T) == 2);
  using StepA = Step<layout != GroupedLayout::kTN>;
  using StepB = Step<layout == GroupedLayout::kNT>;
  __shared__ __align__(128) T a_stages[kStages][kStageElements];
  __shared__ __align__(128) T b_stages[kStages][kStageElements];
  const auto t = find_tile<layout>(params, kMmaTile, kMmaTile);
  if (t.top >= t.end || (params.add && t.inner == 0)) return;
  const auto fetch = [&](int64_t step) {
    const int stage = static_cast<int>(step % kStages);
    StepA::fetch(a_stages[stage], t.a, t.lda, t.top, t.end, step * kMmaInner, t.inner);
    StepB::fetch(b_stages[stage], t.b, t.ldb, t.left, params.n, step * kMmaInner, t.inner);
  };
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize,
            lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int m0 = warp / 4 * 64, n0 = warp % 4 * 32;
  float sum[4][4][4] = {};  // tiles of 16 rows, 8 columns
  const int64_t steps = (t.inner + kMmaInner - 1) / kMmaInner;
  for (int64_t step = 0; step < kStages - 1; ++step) {
    if (step < steps) fetch(step);
    __pipeline_commit();
  }
  for (int64_t step = 0; step < steps; ++step) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();  // the step is visible to all threads, and the stage that is filled next is free
    if (step + kStages - 1 < steps) fetch(step + kStages - 1);
    __pipeline_commit();
    const T *a = a_stages[step % kStages], *b = b_stages[step % kStages];
    HERO_UNROLL
    for (int k = 0; k < kMmaInner; k += 16) {
      unsigned a_part[4][4], b_part[2][4];
      HERO_UNROLL
      for (int i = 0; i < 4; ++i) StepA::template read<true>(a_part[i], a, m0 + i * 16, k);
      HERO_UNROLL
      for (int j = 0; j < 2; ++j) StepB::template read<false>(b_part[j], b, n0 + j * 16, k);
      HERO_UNROLL
      for (int i = 0; i < 4; ++i) {
        HERO_UNROLL
        for (int j = 0; j < 4; ++j)
          multiply_add(sum[i][j], a_part[i], b_part[j / 2][j % 2 * 2], b_part[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
  HERO_UNROLL
  for (int i = 0; i < 4; ++i) {
    HERO_UNROLL
    for (int j = 0; j < 4; ++j) {
      HERO_UNROLL
      for (int half = 0; half < 2; ++half) {
        store_results<layout>(params, t, t.top + m0 + i * 16 + half * 8 + lane / 4,
                              t.left + n0 + j * 8 + lane % 4 * 2, sum[i][j][half * 2],
                              sum[i][j][half * 2 + 1]);
      }
    }
  }
}

}  // namespace hero::ops::cuda
