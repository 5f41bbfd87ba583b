#include "ops/cpu/gemm_fp32.h"

#include <algorithm>
#include <bit>

#include "ops/cpu/gemm.h"
#include "ops/cpu/simd.h"

namespace hero::cpu {
namespace {

constexpr int64_t kDepth = 64;  // sums of k products are sums of blocks of this many: smaller rounding errors

// R rows by C vectors of W columns, over `depth` elements of k.
template <int W, int R, int C>
HERO_INLINE void tile(int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                      int64_t ldc, bool accumulate) {
  using Float = Lanes<W>::Float;
  Float sum[R][C] = {};
  for (int64_t i = 0; i < depth; ++i) {
    Float column[C];
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) __builtin_memcpy(&column[j], b + i * ldb + j * W, sizeof(Float));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float element = a[r * lda + i];
#pragma GCC unroll 16
      for (int j = 0; j < C; ++j) sum[r][j] += column[j] * element;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) {
      Float before = {};
      if (accumulate) __builtin_memcpy(&before, c + r * ldc + j * W, sizeof(Float));
      sum[r][j] += before;
      __builtin_memcpy(c + r * ldc + j * W, &sum[r][j], sizeof(Float));
    }
  }
}

// All of k.
template <int W, int R, int C>
HERO_INLINE void columns(int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                         int64_t ldc) {
  for (int64_t i = 0; i < k; i += kDepth)
    tile<W, R, C>(std::min(kDepth, k - i), a + i, lda, b + i * ldb, ldb, c, ldc, i > 0);
}

// All columns of R rows, C vectors at a time, then 2, then 1.
template <int W, int R, int C>
HERO_INLINE void strip(int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
                       float* c, int64_t ldc) {
  int64_t j = 0;
  for (; j + C * W <= n; j += C * W) columns<W, R, C>(k, a, lda, b + j, ldb, c + j, ldc);
  for (; j + 2 * W <= n; j += 2 * W) columns<W, R, 2>(k, a, lda, b + j, ldb, c + j, ldc);
  for (; j < n; j += W) columns<W, R, 1>(k, a, lda, b + j, ldb, c + j, ldc);
}

// Strips of R rows; the last ones have fewer.
template <int W, int R, int C>
HERO_INLINE void rows_from(int64_t r, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                           const float* b, int64_t ldb, float* c, int64_t ldc) {
  for (; r + R <= m; r += R) strip<W, R, C>(n, k, a + r * lda, lda, b, ldb, c + r * ldc, ldc);
  if constexpr (R > 1) {
    constexpr int kFewer = static_cast<int>(std::bit_ceil(unsigned{R}) / 2);
    rows_from<W, kFewer, C>(r, m, n, k, a, lda, b, ldb, c, ldc);
  }
}

using Kernel = void(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
                    float* c, int64_t ldc);

// The accumulators of 6 rows, a vector of each column and an element fit in 32 registers, or in 16.
#define HERO_GEMM_FP32(name, W, C, ...)                                                               \
  __VA_ARGS__ void name(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, \
                        int64_t ldb, float* c, int64_t ldc) {                                         \
    rows_from<W, 6, C>(0, m, n, k, a, lda, b, ldb, c, ldc);                                           \
  }

#ifdef HERO_SIMD_V4
HERO_GEMM_FP32(gemm_avx512, 16, 4, __attribute__((target("arch=" HERO_SIMD_V4))))
#endif
#ifdef HERO_SIMD_HAS_V3
HERO_GEMM_FP32(gemm_avx2, 8, 2, __attribute__((target("arch=x86-64-v3"))))
#endif
HERO_GEMM_FP32(gemm_plain, 4, 2)
#undef HERO_GEMM_FP32

Kernel* select_kernel() {
#ifdef HERO_SIMD_V4
  if (__builtin_cpu_supports(HERO_SIMD_V4)) return gemm_avx512;
#endif
#ifdef HERO_SIMD_HAS_V3
  if (__builtin_cpu_supports("x86-64-v3")) return gemm_avx2;
#endif
  return gemm_plain;
}

}  // namespace

void gemm_panel(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* panel, int64_t ldb,
                float* c, int64_t ldc) {
  static Kernel* const kernel = select_kernel();
  kernel(m, n, k, a, lda, panel, ldb, c, ldc);
}

void gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* packed, float* c,
          int64_t ldc) {
  for (int64_t p = 0; p < panels(n); ++p) {
    const int64_t width = panel_width(n, p);
    gemm_panel(m, width, k, a, lda, packed + p * kPanelWidth * k, width, c + p * kPanelWidth, ldc);
  }
}

}  // namespace hero::cpu
