#include "ops/cpu/skinny_gemm.h"

#include <algorithm>
#include <type_traits>

#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/skinny_pairs.h"
#include "ops/cpu/skinny_sums.h"
#include "ops/cpu/skinny_transposed.h"

namespace hero::cpu {
namespace {

using bf16 = c10::BFloat16;

// sum[r, c] += x[r] w[c] over kPair elements, for R rows of x and kColumns rows of w.
template <int W, int R, typename T>
HERO_INLINE void add_products(const T* x, int64_t ldx, const T* w, int64_t ldw, Float<W>* sum) {
  constexpr int C = kColumns<W, R>;
  Float<W> even[R], odd[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) load_pair<W>(x + r * ldx, even[r], odd[r]);
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
    Float<W> low, high;
    load_pair<W>(w + c * ldw, low, high);
    keep_in_register(low);
    keep_in_register(high);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r * C + c] += even[r] * low;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r * C + c] += odd[r] * high;
  }
}

// Copies the last kPair / 2 elements of rows whose length is not a multiple of kPair, zero-padded.
template <int W, int N, typename T>
HERO_INLINE void copy_half(const T* from, int64_t ld, T* to) {
  __builtin_memset(to, 0, N * kPair<W> * sizeof(T));
  for (int i = 0; i < N; ++i) __builtin_memcpy(to + i * kPair<W>, from + i * ld, W * sizeof(T));
}

// sum[r, c] += x[r] w[c] over kPair elements, for rows of x converted to fp32: of each row first the even
// elements, then the odd ones, `half` each.
template <int W, int R>
HERO_INLINE void add_converted(const float* x, int64_t half, const bf16* w, int64_t ldw, Float<W>* sum) {
  constexpr int C = kColumns<W, R>;
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
    Float<W> low, high, even, odd;
    load_pair<W>(w + c * ldw, low, high);
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

constexpr int64_t kMaxConverted = 1024;  // elements per row: R rows fit in the L1 cache

// R rows of y; converts x to fp32 once. n is a multiple of 16; k is a multiple of kPair and at most
// kMaxConverted.
template <int W, int R, typename Y>
HERO_INLINE void gemm_converted(int64_t n, int64_t k, const bf16* x, int64_t ldx, const bf16* w, int64_t ldw,
                                Y* y, int64_t ldy) {
  constexpr int C = kColumns<W, R>;
  const int64_t half = k / 2;
  alignas(64) float converted[R * kMaxConverted];
  for (int r = 0; r < R; ++r) {
    for (int64_t i = 0; i < k; i += kPair<W>) {
      Float<W> even, odd;
      load_pair<W>(x + r * ldx + i, even, odd);
      __builtin_memcpy(converted + 2 * r * half + i / 2, &even, sizeof even);
      __builtin_memcpy(converted + (2 * r + 1) * half + i / 2, &odd, sizeof odd);
    }
  }
  for (int64_t c = 0; c < n; c += C) {
    Float<W> sum[W] = {};
    for (int64_t i = 0; i < k; i += kPair<W>) {
#pragma GCC unroll 16
      for (int j = 0; j < C; ++j) __builtin_prefetch(w + (c + j + 8) * ldw + i);
      add_converted<W, R>(converted + i / 2, half, w + c * ldw + i, ldw, sum);
    }
    store_sums<W, R>(sum, y + c, ldy);
  }
}

template <int W, int R, typename T, typename Y>
HERO_INLINE void direct_tile(int64_t k, const T* x, int64_t ldx, const T* w, int64_t ldw, Y* y, int64_t ldy) {
  constexpr int C = kColumns<W, R>;
  Float<W> sum[W] = {};
  int64_t i = 0;
  for (; i + kPair<W> <= k; i += kPair<W>) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) __builtin_prefetch(w + (c + C) * ldw + i);
    add_products<W, R>(x + i, ldx, w + i, ldw, sum);
  }
  if (kPair<W> > 16 && i < k) {
    T rows[R * kPair<W>], weights[C * kPair<W>];
    copy_half<W, R>(x + i, ldx, rows);
    copy_half<W, C>(w + i, ldw, weights);
    add_products<W, R>(rows, kPair<W>, weights, kPair<W>, sum);
  }
  store_sums<W, R>(sum, y, ldy);
}

constexpr int64_t kShortestOrdered = 128, kLongestOrdered = 512;  // elements of a row
constexpr int64_t kBytesAhead = 4096;                             // of prefetches: a page

// One row of x by W rows of w, which are read nearly in the order of memory: one or, because those of bf16
// take longer to widen, two at a time. Longer rows are read faster side by side, and so are the short ones of
// cached keys, which are often in the L2 cache. The sums are those of direct_tile.
template <int W, typename T, typename Y>
HERO_INLINE void ordered_tile(int64_t k, const T* x, const T* w, int64_t ldw, Y* y) {
  constexpr int N = std::is_same_v<T, bf16> ? 2 : 1;
  Float<W> sums[W], even, odd, low, high;
  for (int c = 0; c < W; c += N, w += N * ldw) {
    Float<W> sum[N] = {};
    for (int64_t i = 0; i < k; i += kPair<W>) {
      load_pair<W>(x + i, even, odd);
#pragma GCC unroll 2
      for (int j = 0; j < N; ++j) {
        const T* const row = w + j * ldw + i;
        __builtin_prefetch(reinterpret_cast<const char*>(row) + kBytesAhead);
        load_pair<W>(row, low, high);
        sum[j] += even * low;
        sum[j] += odd * high;
      }
    }
    __builtin_memcpy(sums + c, sum, sizeof sum);
  }
  store_sums<W, 1>(sums, y, /*ldy=*/0);
}

// n is a multiple of 16.
template <int W, int R, typename T, typename Y>
HERO_INLINE void gemm_direct(int64_t n, int64_t k, const T* x, int64_t ldx, const T* w, int64_t ldw, Y* y,
                             int64_t ldy) {
  constexpr int C = kColumns<W, R>;
  if constexpr (R == 1 && W < 16) {
    if (k >= kShortestOrdered && k <= kLongestOrdered) {
      for (int64_t c = 0; c < n; c += C) ordered_tile<W>(k, x, w + c * ldw, ldw, y + c);
      return;
    }
  }
  for (int64_t c = 0; c < n; c += C) direct_tile<W, R>(k, x, ldx, w + c * ldw, ldw, y + c, ldy);
}

template <int W, typename T, typename Y>
HERO_INLINE void multiply(int64_t m, int64_t n, int64_t k, const T* x, int64_t ldx, const T* w, int64_t ldw,
                          Y* y, int64_t ldy) {
  int64_t r = 0;
  if constexpr (W == 16) {  // with 32 registers
    if constexpr (std::is_same_v<T, bf16>) {
      if (k % kPair<W> == 0 && k <= kMaxConverted) {
        for (; r + 4 <= m; r += 4) gemm_converted<W, 4>(n, k, x + r * ldx, ldx, w, ldw, y + r * ldy, ldy);
      }
    }
    for (; r + 4 <= m; r += 4) gemm_direct<W, 4>(n, k, x + r * ldx, ldx, w, ldw, y + r * ldy, ldy);
  }
  for (; r + 4 <= m; r += 2) gemm_direct<W, 2>(n, k, x + r * ldx, ldx, w, ldw, y + r * ldy, ldy);
  x += r * ldx;
  y += r * ldy;
  if (m - r == 3) return gemm_direct<W, 3>(n, k, x, ldx, w, ldw, y, ldy);
  if (m - r == 2) return gemm_direct<W, 2>(n, k, x, ldx, w, ldw, y, ldy);
  if (m - r == 1) return gemm_direct<W, 1>(n, k, x, ldx, w, ldw, y, ldy);
}

template <typename X, typename W, typename Y>
using KernelFunction = void(int64_t m, int64_t n, int64_t k, const X* x, int64_t ldx, const W* w, int64_t ldw,
                            Y* y, int64_t ldy);

// The functions of one instruction set.
struct Kernels {
  KernelFunction<bf16, bf16, float>* fp32_out;
  KernelFunction<bf16, bf16, bf16>* bf16_out;
  KernelFunction<float, float, float>* fp32;
  KernelFunction<bf16, bf16, bf16>* transposed;
  KernelFunction<float, bf16, float>* transposed_fp32_out;
  KernelFunction<float, float, float>* transposed_fp32;
};

#define HERO_KERNEL(name, multiply, X, W, Y, ...)                                                          \
  __VA_ARGS__ void name(int64_t m, int64_t n, int64_t k, const X* x, int64_t ldx, const W* w, int64_t ldw, \
                        Y* y, int64_t ldy) {                                                               \
    multiply(m, n, k, x, ldx, w, ldw, y, ldy);                                                             \
  }
#define HERO_SKINNY_GEMM(name, lanes, ...)                                                                \
  HERO_KERNEL(name##_fp32_out, multiply<lanes>, bf16, bf16, float, __VA_ARGS__)                           \
  HERO_KERNEL(name##_bf16_out, multiply<lanes>, bf16, bf16, bf16, __VA_ARGS__)                            \
  HERO_KERNEL(name##_fp32, multiply<lanes>, float, float, float, __VA_ARGS__)                             \
  HERO_KERNEL(name##_transposed, multiply_transposed<lanes>, bf16, bf16, bf16, __VA_ARGS__)               \
  HERO_KERNEL(name##_transposed_fp32_out, multiply_transposed<lanes>, float, bf16, float, __VA_ARGS__)    \
  HERO_KERNEL(name##_transposed_fp32, multiply_transposed<lanes>, float, float, float, __VA_ARGS__)       \
  constexpr Kernels name{                                                                                 \
      name##_fp32_out,       name##_bf16_out, name##_fp32, name##_transposed, name##_transposed_fp32_out, \
      name##_transposed_fp32};

#ifdef HERO_SIMD_V4
HERO_SKINNY_GEMM(avx512, 16, __attribute__((target("arch=" HERO_SIMD_V4))))
#endif
#ifdef HERO_SIMD_HAS_V3
HERO_SKINNY_GEMM(avx2, 8, __attribute__((target("arch=x86-64-v3"))))
#endif
HERO_SKINNY_GEMM(plain, 4)
#undef HERO_SKINNY_GEMM
#undef HERO_KERNEL

const Kernels& kernels() {
  static const Kernels& selected = []() -> const Kernels& {
#ifdef HERO_SIMD_V4
    if (__builtin_cpu_supports(HERO_SIMD_V4)) return avx512;
#endif
#ifdef HERO_SIMD_HAS_V3
    if (__builtin_cpu_supports("x86-64-v3")) return avx2;
#endif
    return plain;
  }();
  return selected;
}

}  // namespace

void skinny_gemm(int64_t m, int64_t n, int64_t k, const bf16* x, int64_t ldx, const bf16* w, int64_t ldw,
                 float* y, int64_t ldy) {
#ifdef HERO_SIMD_V4
  if (const auto multiply = selected_gemm_kernel().multiply_skinny)
    return multiply(m, n, k, x, ldx, w, ldw, y, ldy);
#endif
  kernels().fp32_out(m, n, k, x, ldx, w, ldw, y, ldy);
}

void skinny_gemm(int64_t m, int64_t n, int64_t k, const bf16* x, int64_t ldx, const bf16* w, int64_t ldw,
                 bf16* y, int64_t ldy) {
#ifdef HERO_SIMD_V4
  if (const auto multiply = selected_gemm_kernel().multiply_skinny_rounded)
    return multiply(m, n, k, x, ldx, w, ldw, y, ldy);
#endif
  kernels().bf16_out(m, n, k, x, ldx, w, ldw, y, ldy);
}

void skinny_gemm(int64_t m, int64_t n, int64_t k, const float* x, int64_t ldx, const float* w, int64_t ldw,
                 float* y, int64_t ldy) {
  const int64_t columns = cached_columns(m, n, k, /*cached=*/1 << 12);
  for (int64_t c = 0; c < n; c += columns)
    kernels().fp32(m, std::min(columns, n - c), k, x, ldx, w + c * ldw, ldw, y + c, ldy);
}

void skinny_gemm_transposed(int64_t m, int64_t n, int64_t k, const bf16* x, int64_t ldx, const bf16* w,
                            int64_t ldw, bf16* y, int64_t ldy) {
  kernels().transposed(m, n, k, x, ldx, w, ldw, y, ldy);
}

void skinny_gemm_transposed(int64_t m, int64_t n, int64_t k, const float* x, int64_t ldx, const bf16* w,
                            int64_t ldw, float* y, int64_t ldy) {
  kernels().transposed_fp32_out(m, n, k, x, ldx, w, ldw, y, ldy);
}

void skinny_gemm_transposed(int64_t m, int64_t n, int64_t k, const float* x, int64_t ldx, const float* w,
                            int64_t ldw, float* y, int64_t ldy) {
  kernels().transposed_fp32(m, n, k, x, ldx, w, ldw, y, ldy);
}

}  // namespace hero::cpu
