#pragma once
// Skinny bf16 GEMM (skinny_gemm.h) with the pairwise dot-product instruction of gemm_kernel_dot.h: the lanes
// of an accumulator are partial sums of one result.
#include "ops/cpu/gemm_kernel_dot.h"
#include "ops/cpu/skinny_sums.h"

namespace hero::cpu {

// sum[r, c] += x[r] w[c] over 2 * kDotLanes elements.
template <class Dot, int R>
HERO_DOT_INLINE void add_skinny_pairs(const c10::BFloat16* x, int64_t ldx, const c10::BFloat16* w,
                                      int64_t ldw, DotSums* sum) {
  constexpr int C = kColumns<kDotLanes, R>;
  DotPairs rows[R], column;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) __builtin_memcpy(&rows[r], x + r * ldx, sizeof(DotPairs));
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
    __builtin_memcpy(&column, w + c * ldw, sizeof(DotPairs));
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) Dot::add(sum[r * C + c], rows[r], column);
  }
}

// The first kDotLanes elements of N rows, zero-padded.
template <int N>
HERO_DOT_INLINE void copy_skinny_half(const c10::BFloat16* from, int64_t ld, c10::BFloat16* to) {
  __builtin_memset(to, 0, N * sizeof(DotPairs));
  for (int i = 0; i < N; ++i)
    __builtin_memcpy(to + i * 2 * kDotLanes, from + i * ld, kDotLanes * sizeof(c10::BFloat16));
}

// R rows of y; n and k are multiples of 16.
template <class Dot, int R, class Out>
HERO_DOT_TARGET void skinny_dot_rows(int64_t n, int64_t k, const c10::BFloat16* x, int64_t ldx,
                                     const c10::BFloat16* w, int64_t ldw, Out* y, int64_t ldy) {
  constexpr int C = kColumns<kDotLanes, R>;
  for (int64_t c = 0; c < n; c += C, w += C * ldw) {
    DotSums sum[kDotLanes] = {};
    int64_t i = 0;
    for (; i + 2 * kDotLanes <= k; i += 2 * kDotLanes) {
#pragma GCC unroll 16
      for (int j = 0; j < C; ++j) __builtin_prefetch(w + (C + j) * ldw + i);
      add_skinny_pairs<Dot, R>(x + i, ldx, w + i, ldw, sum);
    }
    if (i < k) {
      c10::BFloat16 rows[R * 2 * kDotLanes], weights[C * 2 * kDotLanes];
      copy_skinny_half<R>(x + i, ldx, rows);
      copy_skinny_half<C>(w + i, ldw, weights);
      add_skinny_pairs<Dot, R>(rows, 2 * kDotLanes, weights, 2 * kDotLanes, sum);
    }
    store_sums<kDotLanes, R>(sum, y + c, ldy);
  }
}

/// A SkinnyGemmKernel or RoundedSkinnyGemmKernel (gemm_kernels.h). The order of additions depends only on k;
/// the error is bounded as that of dot_gemm.
template <class Dot, class Out>
HERO_DOT_TARGET void skinny_dot(int64_t m, int64_t n, int64_t k, const c10::BFloat16* x, int64_t ldx,
                                const c10::BFloat16* w, int64_t ldw, Out* y, int64_t ldy) {
  const int64_t columns = cached_columns(m, n, k, /*cached=*/1 << 14);
  for (int64_t c = 0; c < n; c += columns, w += columns * ldw, y += columns) {
    const int64_t width = std::min(columns, n - c);
    int64_t r = 0;
    for (; r + 4 <= m; r += 4) skinny_dot_rows<Dot, 4>(width, k, x + r * ldx, ldx, w, ldw, y + r * ldy, ldy);
    const auto* rest = x + r * ldx;
    auto* out = y + r * ldy;
    if (m - r == 3) skinny_dot_rows<Dot, 3>(width, k, rest, ldx, w, ldw, out, ldy);
    if (m - r == 2) skinny_dot_rows<Dot, 2>(width, k, rest, ldx, w, ldw, out, ldy);
    if (m - r == 1) skinny_dot_rows<Dot, 1>(width, k, rest, ldx, w, ldw, out, ldy);
  }
}

}  // namespace hero::cpu
