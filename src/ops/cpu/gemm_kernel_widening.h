#pragma once
// bf16 GEMM kernel for CPUs without (fast) bf16 instructions: converts the packed panel to fp32 in registers
// and the left operand once per strip of rows, then multiplies in fp32. W is the number of lanes of a vector.
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "ops/cpu/simd.h"

namespace hero::cpu {

inline constexpr int64_t kWideningDepth = 256;  // block size of k: a strip of rows fits in the L1 cache
// A tile reads one cache line of each pair of rows of the panel, which is in the L2 cache.
inline constexpr int64_t kPrefetchPairs = 8;
inline constexpr int64_t kWideningRows = 64;  // maximum rows of a product whose results are rounded

// One block of k of a left operand in bf16; fill<W, R> converts R rows to fp32, of which element(buffer, r,
// i) is element i of row r.
struct WideningRows {
  const c10::BFloat16* data;
  int64_t ld;  ///< elements between rows

  static constexpr int64_t kStride = kWideningDepth + 16;  // not a power of two, to avoid cache set conflicts
  template <int W, int R>
  static constexpr int64_t kBuffer = R * kStride;

  WideningRows at(int64_t r, int64_t k) const { return {data + r * ld + k, ld}; }
  template <int W, int R>
  HERO_INLINE void fill(int64_t depth, float* buffer) const {
    for (int r = 0; r < R; ++r) {
      for (int64_t i = 0; i < depth; ++i) buffer[r * kStride + i] = load(data[r * ld + i]);
    }
  }
  template <int W>
  HERO_INLINE static float element(const float* buffer, int64_t r, int64_t i) {
    return buffer[r * kStride + i];
  }
};

// The same of a transposed operand as packed panels hold it, [k/2, m, 2].
struct WideningPanel {
  const c10::BFloat16* data;
  int64_t ld;  ///< elements between pairs of a row

  template <int W, int R>
  static constexpr int64_t kBuffer = kWideningDepth * W;

  WideningPanel at(int64_t r, int64_t k) const { return {data + k / 2 * ld + 2 * r, ld}; }
  // A strip of at least half a vector is converted a vector at a time, which ends before the last pair does;
  // lanes after R are not used.
  template <int W, int R>
  HERO_INLINE void fill(int64_t depth, float* buffer) const {
    using Word = Lanes<W>::Word;
    static_assert(R <= W);
    constexpr size_t last = R * sizeof(uint32_t), size = 2 * R >= W ? sizeof(Word) : last;
    const int64_t pairs = depth / 2;
    for (int64_t p = 0; p < pairs; ++p) {
      Word words{};
      if (p + 1 < pairs) {
        __builtin_memcpy(&words, data + p * ld, size);
      } else {
        __builtin_memcpy(&words, data + p * ld, last);
      }
      store_lanes<W>(buffer + 2 * p * W, reinterpret_cast<Lanes<W>::Float>(words << 16));
      store_lanes<W>(buffer + (2 * p + 1) * W, reinterpret_cast<Lanes<W>::Float>(words & 0xffff0000u));
    }
  }
  template <int W>
  HERO_INLINE static float element(const float* buffer, int64_t r, int64_t i) {
    return buffer[i * W + r];
  }
};

// The sums of earlier blocks of k, added to if not null, and where the new ones are written: fp32, or
// BFloat16 to round them.
template <class Out>
struct WideningSums {
  const float* before;
  int64_t before_ld;
  Out* out;
  int64_t out_ld;

  WideningSums at(int64_t r, int64_t column) const {
    return {before ? before + r * before_ld + column : nullptr, before_ld, out + r * out_ld + column, out_ld};
  }
};

// Multiplies the lower or upper halves of C vectors of words by one element of each of R rows, which is
// reused for all C vectors. Words are reloaded for their upper halves: that is cheaper than the registers to
// keep them.
template <int W, int R, int C, bool Upper, class Left>
HERO_INLINE void add_products(const float* a, int64_t i, const uint32_t* b,
                              typename Lanes<W>::Float (&sum)[R][C]) {
  using Float = Lanes<W>::Float;
  using Word = Lanes<W>::Word;
  Float column[C];
#pragma GCC unroll 16
  for (int j = 0; j < C; ++j) {
    Word words;
    __builtin_memcpy(&words, b + j * W, sizeof(Word));
    column[j] = reinterpret_cast<Float>(Upper ? words & 0xffff0000u : words << 16);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const float element = Left::template element<W>(a, r, i);
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) sum[r][j] += column[j] * element;
  }
}

// Micro-kernel: R rows by C vectors of W columns.
template <int W, int R, int C, class Left, class Out>
HERO_INLINE void widening_tile(int64_t depth, const float* a, const uint32_t* b, int64_t ldb,
                               WideningSums<Out> c) {
  using Float = Lanes<W>::Float;
  Float sum[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) {
      sum[r][j] = Float{};
      if (c.before) __builtin_memcpy(&sum[r][j], c.before + r * c.before_ld + j * W, sizeof(Float));
    }
  }
  for (int64_t i = 0; i < depth; i += 2, b += ldb) {
    __builtin_prefetch(b + kPrefetchPairs * ldb);
    add_products<W, R, C, false, Left>(a, i, b, sum);
    add_products<W, R, C, true, Left>(a, i + 1, b, sum);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) store_lanes<W>(c.out + r * c.out_ld + j * W, sum[r][j]);
  }
}

// All columns of R rows, C vectors at a time, the remainder one by one. `rows`: a buffer for R rows of a.
template <int W, int R, int C, class Left, class Out>
HERO_INLINE void widening_strip(int64_t width, int64_t depth, Left a, float* rows, const uint32_t* b,
                                WideningSums<Out> c) {
  a.template fill<W, R>(depth, rows);
  int64_t column = 0;
  for (; column + C * W <= width; column += C * W)
    widening_tile<W, R, C, Left>(depth, rows, b + column, width, c.at(0, column));
  for (; column < width; column += W)
    widening_tile<W, R, 1, Left>(depth, rows, b + column, width, c.at(0, column));
}

// A strip of `rows` <= R rows, with at most Sums accumulators: fewer rows process more columns at a time.
template <int W, int R, int Sums, class Left, class Out>
HERO_INLINE void widening_rows(int64_t rows, int64_t width, int64_t depth, Left a, float* buffer,
                               const uint32_t* b, WideningSums<Out> c) {
  if (rows == R) {
    constexpr int C = std::min(4, static_cast<int>(std::bit_floor(unsigned{Sums / R})));
    widening_strip<W, R, C>(width, depth, a, buffer, b, c);
  } else if constexpr (R > 1) {
    widening_rows<W, R - 1, Sums>(rows, width, depth, a, buffer, b, c);
  }
}

// All rows, split evenly into strips of at most R: a last strip of few rows would use a converted vector only
// few times.
template <int W, int R, int Sums, class Left, class Out>
HERO_INLINE void widening_block(int64_t m, int64_t width, int64_t depth, Left a, const uint32_t* b,
                                WideningSums<Out> c) {
  alignas(64) float buffer[Left::template kBuffer<W, R>];
  const int64_t strips = (m + R - 1) / R;
  for (int64_t i = 0, r = 0; i < strips; ++i) {
    const int64_t rows = m / strips + (i < m % strips);
    widening_rows<W, R, Sums>(rows, width, depth, a.at(r, 0), buffer, b, c.at(r, 0));
    r += rows;
  }
}

/// A GemmKernel or PanelGemmKernel (gemm_kernels.h). Products are exact in fp32; each result takes k
/// additions, each rounded to nearest, which bounds the error as in gemm_kernel_dot.h.
template <int W, int R, int Sums, class Left>
HERO_INLINE void widening_gemm(int64_t m, int64_t width, int64_t k, Left a, const c10::BFloat16* panel,
                               float* c, int64_t ldc, bool accumulate) {
  const auto* words = reinterpret_cast<const uint32_t*>(panel);
  for (int64_t i = 0; i < k; i += kWideningDepth) {
    const WideningSums<float> sums{accumulate || i > 0 ? c : nullptr, ldc, c, ldc};
    widening_block<W, R, Sums>(m, width, std::min(kWideningDepth, k - i), a.at(0, i), words + i / 2 * width,
                               sums);
  }
}

/// A RoundedGemmKernel (gemm_kernels.h), with the same results, rounded; m at most kWideningRows, width at
/// most kWideningRows.
template <int W, int R, int Sums>
HERO_INLINE void widening_gemm_rounded(int64_t m, int64_t width, int64_t k, WideningRows a,
                                       const c10::BFloat16* panel, c10::BFloat16* c, int64_t ldc) {
  alignas(64) float sums[kWideningRows * kWideningRows];
  const int64_t last = (k - 1) / kWideningDepth * kWideningDepth;
  if (last > 0) widening_gemm<W, R, Sums>(m, width, last, a, panel, sums, width, false);
  widening_block<W, R, Sums>(m, width, k - last, a.at(0, last),
                             reinterpret_cast<const uint32_t*>(panel) + last / 2 * width,
                             WideningSums<c10::BFloat16>{last > 0 ? sums : nullptr, width, c, ldc});
}

}  // namespace hero::cpu
