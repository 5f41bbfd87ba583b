#include "ops/cpu/few_rows.h"

#include <algorithm>

#include "ops/cpu/simd.h"

namespace hero::cpu {
namespace {

using bf16 = c10::BFloat16;
constexpr int kWidth = 16;
using Float = float __attribute__((vector_size(4 * kWidth)));
using Word = uint32_t __attribute__((vector_size(4 * kWidth)));
constexpr int kPair = 2 * kWidth;

// 32 numbers, those of even places and those of odd ones: a word holds one of each.
HERO_INLINE void widen(const bf16* from, Float& even, Float& odd) {
  Word words;
  __builtin_memcpy(&words, from, sizeof words);
  even = reinterpret_cast<Float>(words << 16);
  odd = reinterpret_cast<Float>(words & 0xffff0000u);
}

// The lanes' sums of 16 vectors, as one vector: each round folds neighbours into one, 16 partial sums into 8,
// 4, 2, 1.
HERO_INLINE void lane_sums(Float* v) {
  for (int i = 0; i < 8; ++i) {
    const Float a = v[2 * i], b = v[2 * i + 1];
    v[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
  for (int i = 0; i < 4; ++i) {
    const Float a = v[2 * i], b = v[2 * i + 1];
    v[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
  for (int i = 0; i < 2; ++i) {
    const Float a = v[2 * i], b = v[2 * i + 1];
    v[i] = __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
           __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
  }
  const Float a = v[0], b = v[1];
  v[0] = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

// Rows of w whose products with R rows of x are summed at a time.
template <int R>
constexpr int kColumns = R == 3 ? 4 : kWidth / R;

// What R rows of y take of the sums: kColumns<R> numbers each.
template <int R, typename Y>
HERO_INLINE void store_sums(Float* sum, Y* y, int64_t ldy) {
  constexpr int C = kColumns<R>;
  lane_sums(sum);
  float sums[kWidth];
  Y rounded[kWidth];
  __builtin_memcpy(sums, sum, sizeof sums);
  for (int j = 0; j < kWidth; ++j) store(rounded[j], sums[j]);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) __builtin_memcpy(y + r * ldy, rounded + r * C, C * sizeof(Y));
}

// sum[r, c] += x[r] w[c] over 32 places, for R rows of x and kColumns<R> rows of w.
template <int R>
HERO_INLINE void add_products(const bf16* x, int64_t ldx, const bf16* w, int64_t ldw, Float* sum) {
  constexpr int C = kColumns<R>;
  Float even[R], odd[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) widen(x + r * ldx, even[r], odd[r]);
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
    Float low, high;
    widen(w + c * ldw, low, high);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r * C + c] += even[r] * low;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r * C + c] += odd[r] * high;
  }
}

// The last 16 places of rows whose length is no multiple of 32, filled up with zeros.
template <int N>
HERO_INLINE void copy_half(const bf16* from, int64_t ld, bf16* to) {
  __builtin_memset(to, 0, N * kPair * sizeof(bf16));
  for (int i = 0; i < N; ++i) __builtin_memcpy(to + i * kPair, from + i * ld, kWidth * sizeof(bf16));
}

// sum[r, c] += x[r] w[c] over 32 places, for rows of x that lie widened: of each the numbers of even places,
// then those of odd ones, `half` each.
template <int R>
HERO_INLINE void add_widened(const float* x, int64_t half, const bf16* w, int64_t ldw, Float* sum) {
  constexpr int C = kColumns<R>;
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
    Float low, high, even, odd;
    widen(w + c * ldw, low, high);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      __builtin_memcpy(&even, x + 2 * r * half, sizeof even);
      sum[r * C + c] += even * low;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      __builtin_memcpy(&odd, x + (2 * r + 1) * half, sizeof odd);
      sum[r * C + c] += odd * high;
    }
  }
}

constexpr int64_t kMostWidened = 1024;  // places of a row: R of them stay in the first cache

// R rows of y, for which x is widened once. n is a multiple of 16, k of 32 and at most kMostWidened.
template <int R, typename Y>
HERO_INLINE void rows_of(int64_t n, int64_t k, const bf16* x, int64_t ldx, const bf16* w, int64_t ldw, Y* y,
                         int64_t ldy) {
  constexpr int C = kColumns<R>;
  const int64_t half = k / 2;
  alignas(64) float wide[R * kMostWidened];
  for (int r = 0; r < R; ++r) {
    for (int64_t i = 0; i < k; i += kPair) {
      Float even, odd;
      widen(x + r * ldx + i, even, odd);
      __builtin_memcpy(wide + 2 * r * half + i / 2, &even, sizeof even);
      __builtin_memcpy(wide + (2 * r + 1) * half + i / 2, &odd, sizeof odd);
    }
  }
  for (int64_t c = 0; c < n; c += C) {
    Float sum[kWidth] = {};
    for (int64_t i = 0; i < k; i += kPair) {
#pragma GCC unroll 16
      for (int j = 0; j < C; ++j) __builtin_prefetch(w + (c + j + 8) * ldw + i);
      add_widened<R>(wide + i / 2, half, w + c * ldw + i, ldw, sum);
    }
    store_sums<R>(sum, y + c, ldy);
  }
}

template <int R, typename Y>
HERO_INLINE void dots(int64_t k, const bf16* x, int64_t ldx, const bf16* w, int64_t ldw, Y* y, int64_t ldy) {
  constexpr int C = kColumns<R>;
  Float sum[kWidth] = {};
  int64_t i = 0;
  for (; i + kPair <= k; i += kPair) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) __builtin_prefetch(w + (c + C) * ldw + i);
    add_products<R>(x + i, ldx, w + i, ldw, sum);
  }
  if (i < k) {
    bf16 rows[R * kPair], weights[C * kPair];
    copy_half<R>(x + i, ldx, rows);
    copy_half<C>(w + i, ldw, weights);
    add_products<R>(rows, kPair, weights, kPair, sum);
  }
  store_sums<R>(sum, y, ldy);
}

// n is a multiple of 16.
template <int R, typename Y>
HERO_INLINE void dots_of(int64_t n, int64_t k, const bf16* x, int64_t ldx, const bf16* w, int64_t ldw, Y* y,
                         int64_t ldy) {
  constexpr int C = kColumns<R>;
  for (int64_t c = 0; c < n; c += C) dots<R>(k, x, ldx, w + c * ldw, ldw, y + c, ldy);
}

template <typename Y>
HERO_INLINE void multiply(int64_t m, int64_t n, int64_t k, const bf16* x, int64_t ldx, const bf16* w,
                          int64_t ldw, Y* y, int64_t ldy) {
  int64_t r = 0;
  if (k % kPair == 0 && k <= kMostWidened) {
    for (; r + 4 <= m; r += 4) rows_of<4>(n, k, x + r * ldx, ldx, w, ldw, y + r * ldy, ldy);
  }
  for (; r + 4 <= m; r += 4) dots_of<4>(n, k, x + r * ldx, ldx, w, ldw, y + r * ldy, ldy);
  x += r * ldx;
  y += r * ldy;
  if (m - r == 3) return dots_of<3>(n, k, x, ldx, w, ldw, y, ldy);
  if (m - r == 2) return dots_of<2>(n, k, x, ldx, w, ldw, y, ldy);
  if (m - r == 1) return dots_of<1>(n, k, x, ldx, w, ldw, y, ldy);
}

HERO_SIMD void multiply_wide(int64_t m, int64_t n, int64_t k, const bf16* x, int64_t ldx, const bf16* w,
                             int64_t ldw, float* y, int64_t ldy) {
  multiply(m, n, k, x, ldx, w, ldw, y, ldy);
}
HERO_SIMD void multiply_rounded(int64_t m, int64_t n, int64_t k, const bf16* x, int64_t ldx, const bf16* w,
                                int64_t ldw, bf16* y, int64_t ldy) {
  multiply(m, n, k, x, ldx, w, ldw, y, ldy);
}

// R rows of x by 16 columns of w, or by C times 32.
template <int R>
HERO_INLINE void sixteen_columns(int64_t k, const bf16* x, int64_t ldx, const bf16* w, int64_t ldw, bf16* y,
                                 int64_t ldy) {
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

template <int R, int C>
HERO_INLINE void columns(int64_t k, const bf16* x, int64_t ldx, const bf16* w, int64_t ldw, bf16* y,
                         int64_t ldy) {
  Float even[R][C] = {}, odd[R][C] = {};
  for (int64_t i = 0; i < k; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      Float low, high;
      widen(w + i * ldw + c * kPair, low, high);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) even[r][c] += low * load(x[r * ldx + i]);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) odd[r][c] += high * load(x[r * ldx + i]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      float low[kWidth], high[kWidth];
      __builtin_memcpy(low, &even[r][c], sizeof low);
      __builtin_memcpy(high, &odd[r][c], sizeof high);
      bf16* to = y + r * ldy + c * kPair;
      for (int i = 0; i < kWidth; ++i) {
        store(to[2 * i], low[i]);
        store(to[2 * i + 1], high[i]);
      }
    }
  }
}

template <int R>
HERO_INLINE void columns_of(int64_t n, int64_t k, const bf16* x, int64_t ldx, const bf16* w, int64_t ldw,
                            bf16* y, int64_t ldy) {
  int64_t c = 0;
  for (; c + 2 * kPair <= n; c += 2 * kPair) columns<R, 2>(k, x, ldx, w + c, ldw, y + c, ldy);
  for (; c + kPair <= n; c += kPair) columns<R, 1>(k, x, ldx, w + c, ldw, y + c, ldy);
  if (c < n) sixteen_columns<R>(k, x, ldx, w + c, ldw, y + c, ldy);
}

HERO_SIMD void multiply_transposed(int64_t m, int64_t n, int64_t k, const bf16* x, int64_t ldx, const bf16* w,
                                   int64_t ldw, bf16* y, int64_t ldy) {
  int64_t r = 0;
  for (; r + 4 <= m; r += 4) columns_of<4>(n, k, x + r * ldx, ldx, w, ldw, y + r * ldy, ldy);
  for (; r < m; ++r) columns_of<1>(n, k, x + r * ldx, ldx, w, ldw, y + r * ldy, ldy);
}

}  // namespace

void few_rows(int64_t m, int64_t n, int64_t k, const bf16* x, int64_t ldx, const bf16* w, int64_t ldw,
              float* y, int64_t ldy) {
  multiply_wide(m, n, k, x, ldx, w, ldw, y, ldy);
}

void few_rows(int64_t m, int64_t n, int64_t k, const bf16* x, int64_t ldx, const bf16* w, int64_t ldw,
              bf16* y, int64_t ldy) {
  multiply_rounded(m, n, k, x, ldx, w, ldw, y, ldy);
}

void few_rows_transposed(int64_t m, int64_t n, int64_t k, const bf16* x, int64_t ldx, const bf16* w,
                         int64_t ldw, bf16* y, int64_t ldy) {
  multiply_transposed(m, n, k, x, ldx, w, ldw, y, ldy);
}

}  // namespace hero::cpu
