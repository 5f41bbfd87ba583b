#include "ops/cpu/gemm_block.h"

#include <algorithm>

#include "ops/cpu/simd.h"

namespace hero::cpu {
namespace {

using bf16 = c10::BFloat16;

constexpr int64_t kDepth = 256;           // of k at a time: a strip of rows stays in the first cache
constexpr int64_t kStride = kDepth + 16;  // between its rows: no power of two, which would share cache lines

// typedef: in `using` g++ forgets a size that depends on a parameter.
template <int W>
struct Lanes {
  typedef float Float __attribute__((vector_size(4 * W)));
  typedef uint32_t Word __attribute__((vector_size(4 * W)));
};

// R rows by C vectors of W columns; `a` holds R rows of 2 * pairs numbers, kStride apart.
template <int W, int R, int C>
HERO_INLINE void tile(int64_t pairs, const float* a, const uint32_t* b, int64_t ldb, float* c, int64_t ldc,
                      bool accumulate) {
  using Float = Lanes<W>::Float;
  using Word = Lanes<W>::Word;
  Float sum[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) {
      sum[r][j] = Float{};
      if (accumulate) __builtin_memcpy(&sum[r][j], c + r * ldc + j * W, sizeof(Float));
    }
  }
  for (int64_t p = 0; p < pairs; ++p, a += 2, b += ldb) {
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) {
      Word words;
      __builtin_memcpy(&words, b + j * W, sizeof(Word));
      const auto low = reinterpret_cast<Float>(words << 16),
                 high = reinterpret_cast<Float>(words & 0xffff0000u);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r][j] += low * a[r * kStride];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r][j] += high * a[r * kStride + 1];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) __builtin_memcpy(c + r * ldc + j * W, &sum[r][j], sizeof(Float));
  }
}

// All columns of R rows, C vectors at a time and what is left one by one.
template <int W, int R, int C>
HERO_INLINE void strip(int64_t width, int64_t depth, const bf16* a, int64_t lda, const uint32_t* b, float* c,
                       int64_t ldc, bool accumulate) {
  alignas(64) float rows[R * kStride];
  for (int r = 0; r < R; ++r) {
    for (int64_t i = 0; i < depth; ++i) rows[r * kStride + i] = load(a[r * lda + i]);
  }
  int64_t column = 0;
  for (; column + C * W <= width; column += C * W)
    tile<W, R, C>(depth / 2, rows, b + column, width, c + column, ldc, accumulate);
  for (; column < width; column += W)
    tile<W, R, 1>(depth / 2, rows, b + column, width, c + column, ldc, accumulate);
}

// Strips of R rows, and of fewer for the last ones, which take more columns at a time for as many sums.
template <int W, int R, int C>
HERO_INLINE void rows_from(int64_t r, int64_t m, int64_t width, int64_t depth, const bf16* a, int64_t lda,
                           const uint32_t* b, float* c, int64_t ldc, bool accumulate) {
  for (; r + R <= m; r += R) strip<W, R, C>(width, depth, a + r * lda, lda, b, c + r * ldc, ldc, accumulate);
  if constexpr (R > 1) {
    rows_from<W, R / 2, (C < 4 ? 2 * C : C)>(r, m, width, depth, a, lda, b, c, ldc, accumulate);
  }
}

template <int W, int R, int C>
HERO_INLINE void block(int64_t m, int64_t width, int64_t k, const bf16* a, int64_t lda, const bf16* panel,
                       float* c, int64_t ldc, bool accumulate) {
  const auto* words = reinterpret_cast<const uint32_t*>(panel);
  for (int64_t i = 0; i < k; i += kDepth) {
    rows_from<W, R, C>(0, m, width, std::min(kDepth, k - i), a + i, lda, words + i / 2 * width, c, ldc,
                       accumulate || i > 0);
  }
}

void block_sse2(int64_t m, int64_t width, int64_t k, const bf16* a, int64_t lda, const bf16* panel, float* c,
                int64_t ldc, bool accumulate) {
  block<4, 4, 2>(m, width, k, a, lda, panel, c, ldc, accumulate);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("arch=x86-64-v3"))) void block_avx2(int64_t m, int64_t width, int64_t k, const bf16* a,
                                                          int64_t lda, const bf16* panel, float* c,
                                                          int64_t ldc, bool accumulate) {
  block<8, 12, 1>(m, width, k, a, lda, panel, c, ldc, accumulate);
}

__attribute__((target("arch=x86-64-v4"))) void block_avx512(int64_t m, int64_t width, int64_t k,
                                                            const bf16* a, int64_t lda, const bf16* panel,
                                                            float* c, int64_t ldc, bool accumulate) {
  block<16, 16, 1>(m, width, k, a, lda, panel, c, ldc, accumulate);
}
#endif

}  // namespace

const std::vector<NamedBlockGemm>& block_gemms() {
  static const std::vector<NamedBlockGemm> available = [] {
    std::vector<NamedBlockGemm> list;
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) list.push_back({"avx512", block_avx512});
    if (__builtin_cpu_supports("x86-64-v3")) list.push_back({"avx2", block_avx2});
#endif
    list.push_back({"sse2", block_sse2});
    return list;
  }();
  return available;
}

}  // namespace hero::cpu
