#pragma once
// Products of the experts without tensor cores, for any type and width: fp32, and widths that no vector
// divides.
#include "ops/cuda/kernels/grouped.cuh"

namespace hero::ops::cuda {

inline constexpr int kPlainTile = 64, kPlainInner = 16, kPlainSide = 16;  // threads of a block: 16 x 16
inline constexpr int kPlainOwn = kPlainTile / kPlainSide;                 // 4 x 4 results of a thread

template <Grouped form, typename T, typename Out>
__global__ void __launch_bounds__(kPlainSide* kPlainSide) grouped_plain(GroupedWork<T, Out> work) {
  // Inner dimension first; one column more keeps the columns of different rows in different banks.
  __shared__ float a_tile[kPlainInner][kPlainTile + 1], b_tile[kPlainInner][kPlainTile + 1];
  const auto t = find_tile<form>(work, kPlainTile, kPlainTile);
  if (t.top >= t.end) return;
  const int thread = static_cast<int>(threadIdx.y * kPlainSide + threadIdx.x);
  float sum[kPlainOwn][kPlainOwn] = {};
  for (int64_t k = 0; k < t.inner; k += kPlainInner) {
    for (int i = thread; i < kPlainInner * kPlainTile; i += kPlainSide * kPlainSide) {
      // Neighbouring threads read neighbouring values, so who takes what depends on the dimension that is
      // last.
      const int wide_r = i % kPlainTile, wide_k = i / kPlainTile, deep_k = i % kPlainInner,
                deep_r = i / kPlainInner;
      const int ar = form == Grouped::kOfWeights ? wide_r : deep_r,
                ak = form == Grouped::kOfWeights ? wide_k : deep_k;
      const int br = form == Grouped::kOfRowsInnerLast ? deep_r : wide_r,
                bk = form == Grouped::kOfRowsInnerLast ? deep_k : wide_k;
      const bool in_a = t.top + ar < t.end && k + ak < t.inner,
                 in_b = t.left + br < work.n && k + bk < t.inner;
      const int64_t at_a =
          form == Grouped::kOfWeights ? (k + ak) * t.lda + t.top + ar : (t.top + ar) * t.lda + k + ak;
      const int64_t at_b =
          form == Grouped::kOfRowsInnerLast ? (t.left + br) * t.ldb + k + bk : (k + bk) * t.ldb + t.left + br;
      a_tile[ak][ar] = in_a ? static_cast<float>(t.a[at_a]) : 0.0f;
      b_tile[bk][br] = in_b ? static_cast<float>(t.b[at_b]) : 0.0f;
    }
    __syncthreads();
    for (int j = 0; j < kPlainInner; ++j) {
      HERO_UNROLL
      for (int r = 0; r < kPlainOwn; ++r) {
        HERO_UNROLL
        for (int c = 0; c < kPlainOwn; ++c)
          sum[r][c] += a_tile[j][threadIdx.y + r * kPlainSide] * b_tile[j][threadIdx.x + c * kPlainSide];
      }
    }
    __syncthreads();
  }
  HERO_UNROLL
  for (int r = 0; r < kPlainOwn; ++r) {
    HERO_UNROLL
    for (int c = 0; c < kPlainOwn; ++c) {
      const int64_t row = t.top + threadIdx.y + r * kPlainSide,
                    column = t.left + threadIdx.x + c * kPlainSide;
      if (row < t.end && column < work.n) t.c[row * t.ldc + column] = static_cast<Out>(sum[r][c]);
    }
  }
}

}  // namespace hero::ops::cuda
