#pragma once
// Grouped GEMM without tensor cores, for any type and width: fp32, and widths that cannot be vectorized.
#include "ops/cuda/kernels/grouped.cuh"

namespace hero::ops::cuda {

inline constexpr int kSimtTile = 64, kSimtInner = 16, kSimtSide = 16;  // 16 x 16 threads per block
inline constexpr int kSimtResults = kSimtTile / kSimtSide;             // 4 x 4 results per thread

template <GroupedLayout layout, typename T, typename Out>
__global__ void __launch_bounds__(kSimtSide* kSimtSide) grouped_simt(GroupedGemmParams<T, Out> params) {
  // Inner dimension first; one column of padding avoids bank conflicts.
  __shared__ float a_tile[kSimtInner][kSimtTile + 1], b_tile[kSimtInner][kSimtTile + 1];
  const auto t = find_tile<layout>(params, kSimtTile, kSimtTile);
  if (t.top >= t.end || (params.add && t.inner == 0)) return;
  const int thread = static_cast<int>(threadIdx.y * kSimtSide + threadIdx.x);
  float sum[kSimtResults][kSimtResults] = {};
  for (int64_t k = 0; k < t.inner; k += kSimtInner) {
    for (int i = thread; i < kSimtInner * kSimtTile; i += kSimtSide * kSimtSide) {
      // Coalesced loads: the thread mapping depends on the contiguous dimension.
      const int wide_r = i % kSimtTile, wide_k = i / kSimtTile, deep_k = i % kSimtInner,
                deep_r = i / kSimtInner;
      const int ar = layout == GroupedLayout::kTN ? wide_r : deep_r,
                ak = layout == GroupedLayout::kTN ? wide_k : deep_k;
      const int br = layout == GroupedLayout::kNT ? deep_r : wide_r,
                bk = layout == GroupedLayout::kNT ? deep_k : wide_k;
      const bool in_a = t.top + ar < t.end && k + ak < t.inner,
                 in_b = t.left + br < params.n && k + bk < t.inner;
      const int64_t at_a =
          layout == GroupedLayout::kTN ? (k + ak) * t.lda + t.top + ar : (t.top + ar) * t.lda + k + ak;
      const int64_t at_b =
          layout == GroupedLayout::kNT ? (t.left + br) * t.ldb + k + bk : (k + bk) * t.ldb + t.left + br;
      a_tile[ak][ar] = in_a ? static_cast<float>(t.a[at_a]) : 0.0f;
      b_tile[bk][br] = in_b ? static_cast<float>(t.b[at_b]) : 0.0f;
    }
    __syncthreads();
    for (int j = 0; j < kSimtInner; ++j) {
      HERO_UNROLL
      for (int r = 0; r < kSimtResults; ++r) {
        HERO_UNROLL
        for (int c = 0; c < kSimtResults; ++c)
          sum[r][c] += a_tile[j][threadIdx.y + r * kSimtSide] * b_tile[j][threadIdx.x + c * kSimtSide];
      }
    }
    __syncthreads();
  }
  HERO_UNROLL
  for (int r = 0; r < kSimtResults; ++r) {
    HERO_UNROLL
    for (int c = 0; c < kSimtResults; ++c) {
      const int64_t row = t.top + threadIdx.y + r * kSimtSide, column = t.left + threadIdx.x + c * kSimtSide;
      if (row >= t.end || column >= params.n) continue;
      Out* to = t.c + row * t.ldc + column;
      const float before = layout == GroupedLayout::kTN && params.add ? static_cast<float>(*to) : 0.0f;
      *to = static_cast<Out>(before + sum[r][c]);
    }
  }
}

}  // namespace hero::ops::cuda
