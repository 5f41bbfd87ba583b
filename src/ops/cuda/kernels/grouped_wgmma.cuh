#pragma once
// Weight gradients of the experts (kTN of grouped.cuh) on Hopper's tensor cores: bf16 operands, fp32
// accumulation, widths in multiples of 8. A thread block computes a tile of 128 x 256, or x 128 at the right
// edge; each of its two warpgroups computes 64 rows. Steps of 64 rows of the operands pass through four
// stages of shared memory: while one is multiplied, and the one before may be, two are loaded.
#include "ops/cuda/kernels/grouped.cuh"
#include "ops/cuda/kernels/wgmma.cuh"

namespace hero::ops::cuda {

inline constexpr int kWgmmaRows = 128, kWgmmaColumns = 256, kWgmmaThreads = 256;
inline constexpr int kWgmmaInner = 64, kWgmmaStages = 4, kStepsAhead = kWgmmaStages - 2;
inline constexpr int kPanelColumns = 64, kChunkBytes = 16;  // columns of a panel: 128 bytes per row
inline constexpr int kPanelBytes = kWgmmaInner * kPanelColumns * 2;
inline constexpr int kStageBytes = (kWgmmaRows + kWgmmaColumns) / kPanelColumns * kPanelBytes;
inline constexpr int kOffsetB = kWgmmaRows / kPanelColumns * kPanelBytes;  // in a stage
inline constexpr int kWgmmaSharedBytes = kWgmmaStages * kStageBytes;

/// Starts the asynchronous copy of rows [k, k + kWgmmaInner) and `width` columns from `left` of x to panels;
/// rows from `rows` and columns from `ld` on are zero.
template <int width, typename T>
__device__ __forceinline__ void fetch_panels(unsigned char* panels, const T* x, int64_t ld, int64_t left,
                                             int64_t k, int64_t rows) {
  constexpr int kElements = kChunkBytes / static_cast<int>(sizeof(T)), kChunks = width / kElements,
                kPanelChunks = kPanelColumns / kElements, kRowsAtOnce = kWgmmaThreads / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks, first = static_cast<int>(threadIdx.x) / kChunks;
  const int64_t column = left + chunk * kElements;
  unsigned char* panel = panels + chunk / kPanelChunks * kPanelBytes;
  HERO_UNROLL
  for (int i = 0; i < kWgmmaInner / kRowsAtOnce; ++i) {
    const int row = first + i * kRowsAtOnce;
    const bool inside = k + row < rows && column < ld;
    __pipeline_memcpy_async(panel + (row * kPanelChunks + (chunk % kPanelChunks ^ row % 8)) * kChunkBytes,
                            inside ? x + (k + row) * ld + column : x, kChunkBytes, inside ? 0 : kChunkBytes);
  }
}

/// Starts the copy of a step of a tile of `columns` columns.
template <int columns, typename T>
__device__ __forceinline__ void fetch_step(unsigned char* shared, const Tile<T, float>& t, int64_t step) {
  unsigned char* stage = shared + step % kWgmmaStages * kStageBytes;
  fetch_panels<kWgmmaRows>(stage, t.a, t.lda, t.top, step * kWgmmaInner, t.inner);
  fetch_panels<columns>(stage + kOffsetB, t.b, t.ldb, t.left, step * kWgmmaInner, t.inner);
}

/// Loads a tile of the result into the L2 cache.
template <int columns, typename T>
__device__ __forceinline__ void prefetch_result(const Tile<T, float>& t) {
  constexpr int kLine = 128 / static_cast<int>(sizeof(float)), kLines = columns / kLine;
  for (int i = static_cast<int>(threadIdx.x); i < kWgmmaRows * kLines; i += kWgmmaThreads) {
    const int64_t row = t.top + i / kLines, column = t.left + i % kLines * kLine;
    if (row < t.end && column < t.ldc) prefetch_line(t.c + row * t.ldc + column);
  }
}

/// Stores the sums of a warpgroup's thread, or adds them. Loads are not moved before stores, so those of a
/// batch come first.
template <int columns, typename T>
__device__ __forceinline__ void store_tile(const GroupedGemmParams<T, float>& params, const Tile<T, float>& t,
                                           const float (&sum)[columns / 2]) {
  constexpr int kBatch = 16;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize,
            lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t top = t.top + warp * 16 + lane / 4, left = t.left + lane % 4 * 2;
  float* c = t.c + top * t.ldc + left;
  // Pair i: columns from 8 (i / 2), rows from 8 (i % 2).
  const auto inside = [&](int i) { return top + i % 2 * 8 < t.end && left + i / 2 * 8 < params.n; };
  const auto address = [&](int i) { return c + i % 2 * 8 * t.ldc + i / 2 * 8; };
  HERO_UNROLL
  for (int first = 0; first < columns / 4; first += kBatch) {
    Vector<float, 2> before[kBatch] = {};
    HERO_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      if (params.add && inside(first + i)) before[i] = load<2>(address(first + i));
    }
    HERO_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      const int pair = first + i;
      const Vector<float, 2> total{
          {before[i].value[0] + sum[pair * 2], before[i].value[1] + sum[pair * 2 + 1]}};
      if (inside(pair)) store(address(pair), total);
    }
  }
}

/// Computes `columns` columns of a tile.
template <int columns, typename T>
__device__ __forceinline__ void multiply_tile(const GroupedGemmParams<T, float>& params,
                                              const Tile<T, float>& t, unsigned char* shared) {
  const int warpgroup = static_cast<int>(threadIdx.x) / (4 * kWarpSize);
  float sum[columns / 2] = {};
  const int64_t steps = (t.inner + kWgmmaInner - 1) / kWgmmaInner;
  for (int64_t step = 0; step < kStepsAhead; ++step) {
    if (step < steps) fetch_step<columns>(shared, t, step);
    __pipeline_commit();
  }
  if (params.add) prefetch_result<columns>(t);
  for (int64_t step = 0; step < steps; ++step) {
    __pipeline_wait_prior(kStepsAhead - 1);
    fence_shared_writes();
    __syncthreads();  // the step is visible to all threads, and the products of step - 2 have ended
    if (step + kStepsAhead < steps) fetch_step<columns>(shared, t, step + kStepsAhead);
    __pipeline_commit();
    fence_accumulators();
    unsigned char* stage = shared + step % kWgmmaStages * kStageBytes;
    const uint32_t a = shared_address(stage + warpgroup * kPanelBytes), b = shared_address(stage + kOffsetB);
    HERO_UNROLL
    for (int k = 0; k < kWgmmaInner; k += 16) {
      multiply_add_async(sum, matrix_descriptor(a + k * kPanelColumns * 2, kPanelBytes),
                         matrix_descriptor(b + k * kPanelColumns * 2, kPanelBytes));
    }
    commit_products();
    wait_for_products<1>();
  }
  wait_for_products<0>();
  store_tile<columns>(params, t, sum);
}

/// Grid as for kTN in tiles of kWgmmaRows x kWgmmaColumns; kWgmmaSharedBytes of dynamic shared memory.
template <typename T>
__global__ void __launch_bounds__(kWgmmaThreads, 1) grouped_wgmma(GroupedGemmParams<T, float> params) {
  static_assert(sizeof(T) == 2);
  const auto t = find_tile<GroupedLayout::kTN>(params, kWgmmaRows, kWgmmaColumns);
  if (params.add && t.inner == 0) return;
  unsigned char* shared = dynamic_shared();
  if (shared_address(shared) % 1024 != 0) __trap();
  if (params.n - t.left > kWgmmaColumns / 2) {
    multiply_tile<kWgmmaColumns>(params, t, shared);
  } else {
    multiply_tile<kWgmmaColumns / 2>(params, t, shared);
  }
}

}  // namespace hero::ops::cuda
