#include "ops/cpu/gemm_kernels.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <string>
#include <string_view>

#include "io/error.h"
#include "ops/cpu/simd.h"

namespace hero::cpu {
namespace {

using bf16 = c10::BFloat16;

constexpr int64_t kDepth = 256;           // block size of k: a strip of rows fits in the L1 cache
constexpr int64_t kStride = kDepth + 16;  // row stride: not a power of two, to avoid cache set conflicts

// Multiplies the lower or upper halves of C vectors of words by one element of each of R rows, which is
// reused for all C vectors. Words are reloaded for their upper halves: that is cheaper than the registers to
// keep them.
template <int W, int R, int C, bool Upper>
HERO_INLINE void add_products(const float* a, const uint32_t* b, typename Lanes<W>::Float (&sum)[R][C]) {
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
    const float element = a[r * kStride];
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) sum[r][j] += column[j] * element;
  }
}

// Micro-kernel: R rows by C vectors of W columns; `a` holds R rows of 2 * pairs elements with row stride
// kStride.
template <int W, int R, int C>
HERO_INLINE void tile(int64_t pairs, const float* a, const uint32_t* b, int64_t ldb, float* c, int64_t ldc,
                      bool accumulate) {
  using Float = Lanes<W>::Float;
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
    add_products<W, R, C, false>(a, b, sum);
    add_products<W, R, C, true>(a + 1, b, sum);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) __builtin_memcpy(c + r * ldc + j * W, &sum[r][j], sizeof(Float));
  }
}

// All columns of R rows, C vectors at a time, the remainder one by one.
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

// Strips of R rows with at most Sums accumulators; the last strips have fewer rows and process more columns
// at a time.
template <int W, int R, int Sums>
HERO_INLINE void rows_from(int64_t r, int64_t m, int64_t width, int64_t depth, const bf16* a, int64_t lda,
                           const uint32_t* b, float* c, int64_t ldc, bool accumulate) {
  constexpr int C = std::min(4, static_cast<int>(std::bit_floor(unsigned{Sums / R})));
  for (; r + R <= m; r += R) strip<W, R, C>(width, depth, a + r * lda, lda, b, c + r * ldc, ldc, accumulate);
  if constexpr (R > 1) {
    rows_from<W, static_cast<int>(std::bit_ceil(unsigned{R}) / 2), Sums>(r, m, width, depth, a, lda, b, c,
                                                                         ldc, accumulate);
  }
}

template <int W, int R, int Sums>
HERO_INLINE void blocked_gemm(int64_t m, int64_t width, int64_t k, const bf16* a, int64_t lda,
                              const bf16* panel, float* c, int64_t ldc, bool accumulate) {
  const auto* words = reinterpret_cast<const uint32_t*>(panel);
  for (int64_t i = 0; i < k; i += kDepth) {
    rows_from<W, R, Sums>(0, m, width, std::min(kDepth, k - i), a + i, lda, words + i / 2 * width, c, ldc,
                          accumulate || i > 0);
  }
}

void gemm_sse2(int64_t m, int64_t width, int64_t k, const bf16* a, int64_t lda, const bf16* panel, float* c,
               int64_t ldc, bool accumulate) {
  blocked_gemm<4, 4, 8>(m, width, k, a, lda, panel, c, ldc, accumulate);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("arch=x86-64-v3"))) void gemm_avx2(int64_t m, int64_t width, int64_t k, const bf16* a,
                                                         int64_t lda, const bf16* panel, float* c,
                                                         int64_t ldc, bool accumulate) {
  blocked_gemm<8, 5, 10>(m, width, k, a, lda, panel, c, ldc, accumulate);
}

__attribute__((target("arch=x86-64-v4"))) void gemm_avx512(int64_t m, int64_t width, int64_t k, const bf16* a,
                                                           int64_t lda, const bf16* panel, float* c,
                                                           int64_t ldc, bool accumulate) {
  blocked_gemm<16, 16, 16>(m, width, k, a, lda, panel, c, ldc, accumulate);
}
#endif

}  // namespace

const std::vector<NamedGemmKernel>& gemm_kernels() {
  static const std::vector<NamedGemmKernel> available = [] {
    std::vector<NamedGemmKernel> list;
    const auto dot = avx512_bf16_gemm_kernel();
    if (const auto multiply = amx_gemm_kernel()) {
      list.push_back({"amx_bf16", multiply});
      if (dot) {
        list.back().multiply_skinny = dot->multiply_skinny;
        list.back().multiply_skinny_rounded = dot->multiply_skinny_rounded;
      }
    }
    if (dot) list.push_back(*dot);
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) list.push_back({"avx512", gemm_avx512});
    if (__builtin_cpu_supports("x86-64-v3")) list.push_back({"avx2", gemm_avx2});
#endif
    list.push_back({"sse2", gemm_sse2});
    return list;
  }();
  return available;
}

const NamedGemmKernel& find_gemm_kernel(const char* name) {
  const std::string_view wanted = name ? name : "";
  std::string names;
  for (const auto& kernel : gemm_kernels()) {
    if (wanted.empty() || kernel.name == wanted) return kernel;
    names += std::string(names.empty() ? "" : ", ") + kernel.name;
  }
  throw UserError("HERO_GEMM: found " + std::string(wanted) + ", expected one of " + names);
}

const NamedGemmKernel& selected_gemm_kernel() {
  static const NamedGemmKernel& kernel = find_gemm_kernel(std::getenv("HERO_GEMM"));
  return kernel;
}

}  // namespace hero::cpu
