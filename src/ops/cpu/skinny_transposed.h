#pragma once
// The kernels of skinny_gemm_transposed (skinny_gemm.h): y = x w for w [k, n], whose rows are added up.
#include <c10/util/BFloat16.h>

#include <type_traits>

#include "ops/cpu/simd.h"
#include "ops/cpu/skinny_pairs.h"

namespace hero::cpu {

// R rows of x by 16 columns of w; below, by C * kPair columns.
template <int R, typename X, typename T, typename Y>
HERO_INLINE void sixteen_columns(int64_t k, const X* x, int64_t ldx, const T* w, int64_t ldw, Y* y,
                                 int64_t ldy) {
  constexpr int kWidth = 16;
  float sum[R][kWidth] = {};
  for (int64_t i = 0; i < k; ++i) {
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < kWidth; ++c) sum[r][c] += load(w[i * ldw + c]) * load(x[r * ldx + i]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < kWidth; ++c) store(y[r * ldy + c], sum[r][c]);
  }
}

// Stores kPair sums of the columns that load_pair<W>(const T*, ...) split.
template <int W, typename T, typename Y>
HERO_INLINE void store_pair(const Float<W>& first, const Float<W>& second, Y* to) {
  constexpr bool interleaved = std::is_same_v<T, c10::BFloat16>;
  float low[W], high[W];
  __builtin_memcpy(low, &first, sizeof low);
  __builtin_memcpy(high, &second, sizeof high);
  for (int i = 0; i < W; ++i) {
    store(to[interleaved ? 2 * i : i], low[i]);
    store(to[interleaved ? 2 * i + 1 : W + i], high[i]);
  }
}

template <int W, int R, int C, typename X, typename T, typename Y>
HERO_INLINE void transposed_tile(int64_t k, const X* x, int64_t ldx, const T* w, int64_t ldw, Y* y,
                                 int64_t ldy) {
  Float<W> first[R][C] = {}, second[R][C] = {};
  for (int64_t i = 0; i < k; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      Float<W> low, high;
      load_pair<W>(w + i * ldw + c * kPair<W>, low, high);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) first[r][c] += low * load(x[r * ldx + i]);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) second[r][c] += high * load(x[r * ldx + i]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) store_pair<W, T>(first[r][c], second[r][c], y + r * ldy + c * kPair<W>);
  }
}

template <int W, int R, typename X, typename T, typename Y>
HERO_INLINE void transposed_columns(int64_t n, int64_t k, const X* x, int64_t ldx, const T* w, int64_t ldw,
                                    Y* y, int64_t ldy) {
  int64_t c = 0;
  if constexpr (W == 16) {  // 16 sums in 32 registers
    for (; c + 2 * kPair<W> <= n; c += 2 * kPair<W>)
      transposed_tile<W, R, 2>(k, x, ldx, w + c, ldw, y + c, ldy);
  }
  for (; c + kPair<W> <= n; c += kPair<W>) transposed_tile<W, R, 1>(k, x, ldx, w + c, ldw, y + c, ldy);
  if (kPair<W> > 16 && c < n) sixteen_columns<R>(k, x, ldx, w + c, ldw, y + c, ldy);
}

template <int W, typename X, typename T, typename Y>
HERO_INLINE void multiply_transposed(int64_t m, int64_t n, int64_t k, const X* x, int64_t ldx, const T* w,
                                     int64_t ldw, Y* y, int64_t ldy) {
  int64_t r = 0;
  for (; r + 4 <= m; r += 4) transposed_columns<W, 4>(n, k, x + r * ldx, ldx, w, ldw, y + r * ldy, ldy);
  for (; r + 2 <= m; r += 2) transposed_columns<W, 2>(n, k, x + r * ldx, ldx, w, ldw, y + r * ldy, ldy);
  if (r < m) transposed_columns<W, 1>(n, k, x + r * ldx, ldx, w, ldw, y + r * ldy, ldy);
}

}  // namespace hero::cpu
