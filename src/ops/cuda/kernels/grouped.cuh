#pragma once
// Products of the experts: rows are sorted by expert, and only the device knows where each expert's rows
// begin. Three forms, with r the rows of one expert:
//   c[r, n]    = a[r, k] b_e[n, k]^T   (kOfRows, inner dimension last in b: forward)
//   c[r, n]    = a[r, k] b_e[k, n]     (kOfRows: gradient of the input)
//   c_e[m, n]  = a[r, m]^T b[r, n]     (kOfWeights: gradient of a weight; no rows: zeros)
// A block makes one tile of a result. Rows behind the last expert's get zeros.
#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

enum class Grouped { kOfRows, kOfRowsInnerLast, kOfWeights };

template <typename T, typename Out>
struct GroupedWork {
  const T *a, *b;
  Out* c;
  const int64_t* offsets;  // [E+1], first row of each expert
  int64_t rows, experts;
  int64_t m, n, k;  // m only of weights, k only of rows
};

/// Rows [first, end) of `expert`; of rows that no expert has: the number of experts.
struct RowTile {
  int64_t expert, first, end;
};

/// How many tiles of `height` rows there are at most, each within one expert.
__host__ __device__ __forceinline__ int64_t row_tiles(int64_t rows, int64_t experts, int height) {
  return (rows + height - 1) / height + experts + 1;
}

/// The tile-th of them; empty if there are fewer. Every warp finds it for itself.
__device__ __forceinline__ RowTile find_row_tile(const int64_t* offsets, int64_t rows, int64_t experts,
                                                 int height, int64_t tile) {
  const int lane = static_cast<int>((threadIdx.y * blockDim.x + threadIdx.x) % kLanes);
  int64_t before = 0;
  for (int64_t first = 0; first <= experts; first += kLanes) {
    const int64_t e = first + lane;
    const int64_t begin = e <= experts ? offsets[e] : 0;
    const int64_t end = e < experts ? offsets[e + 1] : e == experts ? rows : 0;
    const int64_t own = (end - begin + height - 1) / height;
    const int64_t sum = warp_prefix(own, lane);
    const int64_t begin_tile = before + sum - own;
    const unsigned here = __ballot_sync(kAll, tile >= begin_tile && tile < begin_tile + own);
    if (here) {
      const int owner = __ffs(here) - 1;
      const int64_t top = __shfl_sync(kAll, begin + (tile - begin_tile) * height, owner);
      const int64_t bottom = __shfl_sync(kAll, end, owner);
      return {first + owner, top, top + height < bottom ? top + height : bottom};
    }
    before += __shfl_sync(kAll, sum, kLanes - 1);
  }
  return {experts, 0, 0};
}

/// What a block makes: rows [top, end) and columns from `left` of c, summed over `inner` products.
template <typename T, typename Out>
struct Tile {
  const T *a, *b;  // of this expert, where the inner dimension begins
  Out* c;
  int64_t lda, ldb, ldc;
  int64_t top, end;  // rows of c
  int64_t left;
  int64_t inner;
};

/// Grid of kOfRows: row tiles, column tiles; of kOfWeights: row tiles of c, column tiles, experts.
template <Grouped form, typename T, typename Out>
__device__ __forceinline__ Tile<T, Out> find_tile(const GroupedWork<T, Out>& w, int height, int width) {
  const int64_t left = static_cast<int64_t>(blockIdx.y) * width;
  if constexpr (form == Grouped::kOfWeights) {
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
            form == Grouped::kOfRowsInnerLast ? w.k : w.n,
            w.n,
            rows.first,
            rows.end,
            left,
            used ? w.k : 0};
  }
}

/// Zeros into the rows of x from *used on; units: 16 bytes or single values. Grid: any.
template <typename Unit>
__global__ void clear_unused_rows(int64_t units, int64_t units_per_row, const int64_t* used, Unit* x) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = *used * units_per_row + static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < units; i += stride)
    x[i] = Unit{};
}

}  // namespace hero::ops::cuda
