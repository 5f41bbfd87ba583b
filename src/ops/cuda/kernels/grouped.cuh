#pragma once
// Grouped GEMM of the experts: rows are sorted by expert, with row offsets on the device. Three layouts, with
// r the rows of one expert:
//   c[r, n]    = a[r, k] b_e[n, k]^T   (kNT: forward)
//   c[r, n]    = a[r, k] b_e[k, n]     (kNN: input gradient)
//   c_e[m, n]  = a[r, m]^T b[r, n]     (kTN: weight gradient; zeros without rows)
// Each thread block computes one tile. Rows behind the last expert's rows get zeros.
#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

enum class GroupedLayout { kNN, kNT, kTN };

template <typename T, typename Out>
struct GroupedGemmParams {
  const T *a, *b;
  Out* c;
  const int64_t* offsets;  // [E+1], first row of each expert
  int64_t rows, experts;
  int64_t m, n, k;   // m only for kTN, k only for kNN and kNT
  bool add = false;  // to c; only for kTN
};

/// Rows [first, end) of `expert`; for padding rows, `expert` is the number of experts.
struct RowTile {
  int64_t expert, first, end;
};

/// Tiles of `tile` rows or columns.
__host__ __device__ __forceinline__ unsigned tile_count(int64_t size, int tile) {
  return static_cast<unsigned>((size + tile - 1) / tile);
}

/// Upper bound on the number of tiles of `height` rows, each within one expert.
__host__ __device__ __forceinline__ int64_t row_tiles(int64_t rows, int64_t experts, int height) {
  return (rows + height - 1) / height + experts + 1;
}

/// Row tile of index `tile`; empty if there are fewer. Every warp computes it.
__device__ __forceinline__ RowTile find_row_tile(const int64_t* offsets, int64_t rows, int64_t experts,
                                                 int height, int64_t tile) {
  const int lane = static_cast<int>((threadIdx.y * blockDim.x + threadIdx.x) % kWarpSize);
  int64_t before = 0;
  for (int64_t first = 0; first <= experts; first += kWarpSize) {
    const int64_t e = first + lane;
    const int64_t begin = e <= experts ? offsets[e] : 0;
    const int64_t end = e < experts ? offsets[e + 1] : e == experts ? rows : 0;
    const int64_t own = (end - begin + height - 1) / height;
    const int64_t sum = warp_prefix(own, lane);
    const int64_t begin_tile = before + sum - own;
    const unsigned here = __ballot_sync(kFullMask, tile >= begin_tile && tile < begin_tile + own);
    if (here) {
      const int owner = __ffs(here) - 1;
      const int64_t top = __shfl_sync(kFullMask, begin + (tile - begin_tile) * height, owner);
      const int64_t bottom = __shfl_sync(kFullMask, end, owner);
      return {first + owner, top, top + height < bottom ? top + height : bottom};
    }
    before += __shfl_sync(kFullMask, sum, kWarpSize - 1);
  }
  return {experts, 0, 0};
}

/// Output tile of a block: rows [top, end) and columns from `left` of c, reduced over `inner`.
template <typename T, typename Out>
struct Tile {
  const T *a, *b;  // operands of this expert, at the start of the inner dimension
  Out* c;
  int64_t lda, ldb, ldc;
  int64_t top, end;  // rows of c
  int64_t left;
  int64_t inner;
};

/// Grid for kNN and kNT: row tiles, column tiles; for kTN: row tiles of c, column tiles, experts.
template <GroupedLayout layout, typename T, typename Out>
__device__ __forceinline__ Tile<T, Out> find_tile(const GroupedGemmParams<T, Out>& w, int height, int width) {
  const int64_t left = static_cast<int64_t>(blockIdx.y) * width;
  if constexpr (layout == GroupedLayout::kTN) {
    const int64_t e = blockIdx.z, first = w.offsets[e], top = static_cast<int64_t>(blockIdx.x) * height;
    return {w.a + first * w.m,
            w.b + first * w.n,
            w.c + e * w.m * w.n,
            w.m,
            w.n,
            w.n,
            top,
            top + height < w.m ? top + height : w.m,
            left,
            w.offsets[e + 1] - first};
  } else {
    const auto rows = find_row_tile(w.offsets, w.rows, w.experts, height, blockIdx.x);
    const bool used = rows.expert < w.experts;
    return {w.a,
            used ? w.b + rows.expert * w.n * w.k : nullptr,
            w.c,
            w.k,
            layout == GroupedLayout::kNT ? w.k : w.n,
            w.n,
            rows.first,
            rows.end,
            left,
            used ? w.k : 0};
  }
}

/// Stores two adjacent elements of a tile's result, or adds them, unless they are outside of c.
template <GroupedLayout layout, typename T, typename Out>
__device__ __forceinline__ void store_results(const GroupedGemmParams<T, Out>& w, const Tile<T, Out>& t,
                                              int64_t row, int64_t column, float first, float second) {
  if (row >= t.end || column >= w.n) return;
  Vector<float, 2> pair{{first, second}};
  Out* to = t.c + row * t.ldc + column;
  if (layout == GroupedLayout::kTN && w.add) {
    const auto before = load_fp32<2>(to);
    pair.value[0] += before.value[0];
    pair.value[1] += before.value[1];
  }
  store_rounded(to, pair);
}

/// Zeroes the rows of x from *used on, in units of 16 bytes or single elements. Any grid.
template <typename Unit>
__global__ void zero_padding_rows(int64_t units, int64_t units_per_row, const int64_t* used, Unit* x) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = *used * units_per_row + static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < units; i += stride)
    x[i] = Unit{};
}

}  // namespace hero::ops::cuda
