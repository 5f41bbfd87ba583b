#pragma once
// Parts of all skinny GEMM kernels (skinny_gemm.h): sums of the lanes of accumulators, and blocking.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "ops/cpu/simd.h"

namespace hero::cpu {

template <int W>
using Float = Lanes<W>::Float;

// Source lane of lane j when two adjacent vectors are reduced to one: the first halves of blocks of B lanes.
template <int W, int B>
constexpr int source_lane(int j) {
  const int within = j % (W / 2);
  return j / (W / 2) * W + within / (B / 2) * B + within % (B / 2);
}

template <int W, int B, int... J>
HERO_INLINE void add_adjacent(const Float<W>& a, const Float<W>& b, Float<W>& out,
                              std::integer_sequence<int, J...>) {
  out = __builtin_shufflevector(a, b, source_lane<W, B>(J)...) +
        __builtin_shufflevector(a, b, source_lane<W, B>(J) + B / 2 ...);
}

// Horizontal sums of W vectors, as one vector: each round adds adjacent vectors pairwise, which halves the
// number of partial sums per vector.
template <int W, int B = W>
HERO_INLINE void horizontal_sums(Float<W>* v) {
#pragma GCC unroll 8
  for (int i = 0; i < B / 2; ++i)
    add_adjacent<W, B>(v[2 * i], v[2 * i + 1], v[i], std::make_integer_sequence<int, W>());
  if constexpr (B > 2) horizontal_sums<W, B / 2>(v);
}

// With AVX2, where only the last round moves lanes between the halves of a vector, which takes longer.
template <>
HERO_INLINE void horizontal_sums<8>(Float<8>* v) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto a = v[2 * i], b = v[2 * i + 1];
    v[i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13) +
           __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const auto a = v[2 * i], b = v[2 * i + 1];
    v[i] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) +
           __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  }
  v[0] = __builtin_shufflevector(v[0], v[1], 0, 1, 2, 3, 8, 9, 10, 11) +
         __builtin_shufflevector(v[0], v[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

// Rows of w per tile of R rows of x.
template <int W, int R>
constexpr int kColumns = W / (R == 3 ? 4 : R);

// Stores the sums to R rows of y, kColumns<W, R> elements each.
template <int W, int R, typename Y>
HERO_INLINE void store_sums(Float<W>* sum, Y* y, int64_t ldy) {
  constexpr int C = kColumns<W, R>;
  horizontal_sums<W>(sum);
  float sums[W];
  Y rounded[W];
  __builtin_memcpy(sums, sum, sizeof sums);
  for (int j = 0; j < W; ++j) store(rounded[j], sums[j]);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) __builtin_memcpy(y + r * ldy, rounded + r * C, C * sizeof(Y));
}

// Rows of w [n, k] that are multiplied by all m rows of x before the next ones: as many as stay in the L1
// cache, with `cached` elements of w.
inline int64_t cached_columns(int64_t m, int64_t n, int64_t k, int64_t cached) {
  return m > 4 ? std::max<int64_t>(16, cached / k / 16 * 16) : n;
}

}  // namespace hero::cpu
