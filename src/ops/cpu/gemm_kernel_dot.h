#pragma once
// bf16 GEMM kernel for CPUs with a pairwise dot-product instruction: a 32-bit word of the packed panel holds
// two adjacent rows of a column, a word of `a` two adjacent elements of a row, and one instruction adds both
// products of all lanes to fp32 accumulators. The instruction is a template parameter, so tests can run the
// kernel with a portable version. Files that include this define HERO_DOT_TARGET as the target attribute of
// the instruction set.
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/simd.h"

#ifndef HERO_DOT_TARGET
#define HERO_DOT_TARGET
#endif
#define HERO_DOT_INLINE inline __attribute__((always_inline)) HERO_DOT_TARGET

namespace hero::cpu {

typedef float DotSums __attribute__((vector_size(64)));
typedef uint32_t DotPairs __attribute__((vector_size(64)));

inline constexpr int64_t kDotLanes = 16;
inline constexpr int64_t kDotDepth = 1024;  // block size of k: a panel slice fits in the L2 cache

// The pairs of `a`: of rows [m, k], or of a transposed operand as packed panels hold it, [k/2, m, 2].
struct DotRows {
  const c10::BFloat16* data;
  int64_t ld;  ///< elements between rows

  HERO_DOT_INLINE const c10::BFloat16* row(int64_t r) const { return data + r * ld; }
  HERO_DOT_INLINE DotRows from(int64_t r) const { return {row(r), ld}; }
  HERO_DOT_INLINE DotRows at_depth(int64_t k) const { return {data + k, ld}; }
};
struct DotPanel {
  const c10::BFloat16* data;
  int64_t ld;  ///< elements between pairs of a row

  HERO_DOT_INLINE const c10::BFloat16* row(int64_t r) const { return data + 2 * r; }
  HERO_DOT_INLINE DotPanel from(int64_t r) const { return {row(r), ld}; }
  HERO_DOT_INLINE DotPanel at_depth(int64_t k) const { return {data + k / 2 * ld, ld}; }
};

HERO_DOT_INLINE void read_sums(DotSums& sums, const float* from) {
  __builtin_memcpy(&sums, from, sizeof sums);
}

// Micro-kernel: R rows by C vectors of columns. Dot::add(sums, a, b) adds the pairwise products of words a
// and b. Out is float, or BFloat16 to round the sums.
template <class Dot, int R, int C, class Left, class Out>
HERO_DOT_INLINE void dot_tile(int64_t pairs, Left a, const uint32_t* b, int64_t ldb, Out* c, int64_t ldc,
                              bool accumulate) {
  DotSums sum[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) {
      sum[r][j] = DotSums{};
      if constexpr (std::is_same_v<Out, float>) {
        if (accumulate) read_sums(sum[r][j], c + r * ldc + j * kDotLanes);
      }
    }
  }
  for (int64_t p = 0; p < pairs; ++p, a = a.at_depth(2), b += ldb) {
    DotPairs column[C];
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) __builtin_memcpy(&column[j], b + j * kDotLanes, sizeof(DotPairs));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      uint32_t pair;
      __builtin_memcpy(&pair, a.row(r), sizeof pair);
      const DotPairs row = DotPairs{} + pair;
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) Dot::add(sum[r][j], row, column[j]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) store_lanes<kDotLanes>(c + r * ldc + j * kDotLanes, sum[r][j]);
  }
}

// A tile of `rows` <= R rows.
template <class Dot, int R, int C, class Left, class Out>
HERO_DOT_INLINE void dot_rows(int64_t rows, int64_t pairs, Left a, const uint32_t* b, int64_t ldb, Out* c,
                              int64_t ldc, bool accumulate) {
  if (rows == R) {
    dot_tile<Dot, R, C>(pairs, a, b, ldb, c, ldc, accumulate);
  } else if constexpr (R > 1) {
    dot_rows<Dot, R - 1, C>(rows, pairs, a, b, ldb, c, ldc, accumulate);
  }
}

// All rows of C vectors of columns, split evenly into tiles of at most R rows: a last tile of a single row
// would have too few accumulators to hide the FMA latency.
template <class Dot, int R, int C, class Left, class Out>
HERO_DOT_TARGET void dot_columns(int64_t m, int64_t pairs, Left a, const uint32_t* b, int64_t ldb, Out* c,
                                 int64_t ldc, bool accumulate) {
  const int64_t tiles = (m + R - 1) / R;
  for (int64_t i = 0, r = 0; i < tiles; ++i) {
    const int64_t rows = m / tiles + (i < m % tiles);
    dot_rows<Dot, R, C>(rows, pairs, a.from(r), b, ldb, c + r * ldc, ldc, accumulate);
    r += rows;
  }
}

// Enough accumulators to hide the latency, few enough to stay in registers.
template <class Dot, class Left, class Out>
HERO_DOT_INLINE void dot_slice(int64_t m, int64_t width, int64_t pairs, Left a, const uint32_t* words, Out* c,
                               int64_t ldc, bool accumulate) {
  switch (width / kDotLanes) {
    case 4:
      return dot_columns<Dot, 6, 4>(m, pairs, a, words, width, c, ldc, accumulate);
    case 3:
      return dot_columns<Dot, 6, 3>(m, pairs, a, words, width, c, ldc, accumulate);
    case 2:
      return dot_columns<Dot, 8, 2>(m, pairs, a, words, width, c, ldc, accumulate);
    default:
      return dot_columns<Dot, 16, 1>(m, pairs, a, words, width, c, ldc, accumulate);
  }
}

template <class Dot, class Left>
HERO_DOT_INLINE void dot_panel(int64_t m, int64_t width, int64_t k, Left a, const c10::BFloat16* panel,
                               float* c, int64_t ldc, bool accumulate) {
  const auto* words = reinterpret_cast<const uint32_t*>(panel);
  for (int64_t i = 0; i < k; i += kDotDepth) {
    const int64_t pairs = std::min(kDotDepth, k - i) / 2;
    dot_slice<Dot>(m, width, pairs, a.at_depth(i), words, c, ldc, accumulate || i > 0);
    words += pairs * width;
  }
}

/// A GemmKernel (gemm_kernels.h) for panels of at most 64 columns. Products are exact in fp32 and each result
/// takes k additions. With rounding to nearest and no overflow, the error is at most g (|c| + sum |a b|), g =
/// k u / (1 - k u), u = 2^-24, for any order of additions; instructions that flush denormals add at most 2 k
/// * 2^-126 * max(1, |a|, |b|).
template <class Dot>
HERO_DOT_TARGET void dot_gemm(int64_t m, int64_t width, int64_t k, const c10::BFloat16* a, int64_t lda,
                              const c10::BFloat16* panel, float* c, int64_t ldc, bool accumulate) {
  dot_panel<Dot>(m, width, k, DotRows{a, lda}, panel, c, ldc, accumulate);
}

/// A RoundedGemmKernel (gemm_kernels.h), with the same results, rounded.
template <class Dot>
HERO_DOT_TARGET void dot_gemm_rounded(int64_t m, int64_t width, int64_t k, const c10::BFloat16* a,
                                      int64_t lda, const c10::BFloat16* panel, c10::BFloat16* c,
                                      int64_t ldc) {
  dot_slice<Dot>(m, width, k / 2, DotRows{a, lda}, reinterpret_cast<const uint32_t*>(panel), c, ldc, false);
}

/// A PanelGemmKernel (gemm_kernels.h), with the same results.
template <class Dot>
HERO_DOT_TARGET void dot_gemm_panels(int64_t m, int64_t width, int64_t k, const c10::BFloat16* a,
                                     const c10::BFloat16* panel, float* c, int64_t ldc, bool accumulate) {
  dot_panel<Dot>(m, width, k, DotPanel{a, 2 * m}, panel, c, ldc, accumulate);
}

}  // namespace hero::cpu
