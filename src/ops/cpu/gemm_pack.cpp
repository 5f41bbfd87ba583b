// Packs operands of GEMMs (gemm.h): interleaves rows or transposes.
#include <algorithm>

#include "ops/cpu/gemm.h"
#include "ops/cpu/gemm_fp32.h"
#include "ops/cpu/simd.h"

namespace hero::cpu {

constexpr int64_t kPrefetchRows = 16;
constexpr int64_t kCacheLine = 64 / sizeof(bf16);

// Interleaves pairs of adjacent rows of b in 32-bit words. Only a panel's part of each row is read, so
// processors do not prefetch the next rows themselves.
HERO_SIMD static void interleave_rows(const uint16_t* b, int64_t k, int64_t k_valid, int64_t width,
                                      int64_t ld, uint32_t* out) {
  for (int64_t r = 0; r < k; r += 2) {
    const uint16_t* low = b + r * ld;
    uint32_t* row = out + r / 2 * width;
    if (r + kPrefetchRows + 1 < k_valid) {
      const uint16_t* next = low + kPrefetchRows * ld;
      for (int64_t c = 0; c < width; c += kCacheLine) {
        __builtin_prefetch(next + c);
        __builtin_prefetch(next + ld + c);
      }
    }
    if (r + 1 < k_valid) {
      const uint16_t* high = low + ld;
      for (int64_t c = 0; c < width; ++c) row[c] = low[c] | static_cast<uint32_t>(high[c]) << 16;
    } else if (r < k_valid) {
      for (int64_t c = 0; c < width; ++c) row[c] = low[c];
    } else {
      for (int64_t c = 0; c < width; ++c) row[c] = 0;
    }
  }
}

using Words4 = uint32_t __attribute__((vector_size(16)));
using Words8 = uint32_t __attribute__((vector_size(32)));

// Transposes 8 x 4 words. A vector's lanes hold rows i and i + 4: shuffles within lanes exist in every
// instruction set, those of whole vectors of 64 bytes take several instructions with AVX2.
HERO_INLINE void transpose_8x4(const uint16_t* in, int64_t ld_in, uint32_t* out, int64_t ld_out) {
  Words8 a[4], b[4];
  for (int i = 0; i < 4; ++i) {
    Words4 lower, upper;
    __builtin_memcpy(&lower, in + i * ld_in, sizeof lower);
    __builtin_memcpy(&upper, in + (i + 4) * ld_in, sizeof upper);
    a[i] = __builtin_shufflevector(lower, upper, 0, 1, 2, 3, 4, 5, 6, 7);
  }
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 2; ++i) {
      b[2 * i] = __builtin_shufflevector(a[i], a[i + 2], 0, 8, 1, 9, 4, 12, 5, 13);
      b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 2], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 4; ++i) a[i] = b[i];
  }
  for (int i = 0; i < 4; ++i) __builtin_memcpy(out + i * ld_out, &a[i], sizeof(Words8));
}

// b stored as [n, k]: pairs are already adjacent, so only words are transposed; 16 x 16 at a time, which are
// whole cache lines.
HERO_SIMD static void transpose_words(const uint16_t* b, int64_t k, int64_t width, int64_t ld,
                                      uint32_t* out) {
  const int64_t pairs = k / 2, whole = pairs / 16 * 16;
  for (int64_t c = 0; c < width; c += 16) {
    for (int64_t r = 0; r < whole; r += 16) {
      for (int64_t i = r; i < r + 16; i += 4) {
        for (int64_t j = c; j < c + 16; j += 8)
          transpose_8x4(b + j * ld + 2 * i, ld, out + i * width + j, width);
      }
    }
  }
  for (int64_t r = whole; r < pairs; ++r) {
    for (int64_t c = 0; c < width; ++c) __builtin_memcpy(out + r * width + c, b + c * ld + 2 * r, 4);
  }
}

void pack_panel(const bf16* b, int64_t k, int64_t k_valid, int64_t n, int64_t ld, bool transposed, int64_t p,
                bf16* packed) {
  const int64_t width = panel_width(n, p);
  auto* out = reinterpret_cast<uint32_t*>(packed + p * kPanelWidth * k);
  const auto* in = reinterpret_cast<const uint16_t*>(b);
  if (transposed) {
    transpose_words(in + p * kPanelWidth * ld, k, width, ld, out);
  } else {
    interleave_rows(in + p * kPanelWidth, k, k_valid, width, ld, out);
  }
}

void pack_panel(const float* b, int64_t k, int64_t n, int64_t ld, bool transposed, int64_t p, float* packed) {
  const int64_t width = panel_width(n, p), first = p * kPanelWidth;
  float* out = packed + first * k;
  if (transposed) {  // a float is a pair of halves
    transpose_words(reinterpret_cast<const uint16_t*>(b + first * ld), 2 * k, width, 2 * ld,
                    reinterpret_cast<uint32_t*>(out));
  } else {
    for (int64_t r = 0; r < k; ++r) std::copy_n(b + first + r * ld, width, out + r * width);
  }
}

void pack(const float* b, int64_t k, int64_t n, int64_t ld, bool transposed, float* packed) {
  parallel_tasks(panels(n), [&](int64_t p) { pack_panel(b, k, n, ld, transposed, p, packed); });
}

void pack(const bf16* b, int64_t k, int64_t n, int64_t ld, bool transposed, bf16* packed) {
  parallel_tasks(panels(n), [&](int64_t p) { pack_panel(b, k, k, n, ld, transposed, p, packed); });
}

using Halves8 = uint16_t __attribute__((vector_size(16)));

// Transposes 8 x 8 elements: three rounds, each of which interleaves rows i and i + 4.
HERO_INLINE void transpose_8x8(const uint16_t* in, int64_t ld_in, uint16_t* out, int64_t ld_out) {
  Halves8 a[8], b[8];
  for (int i = 0; i < 8; ++i) __builtin_memcpy(&a[i], in + i * ld_in, sizeof(Halves8));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) {
      b[2 * i] = __builtin_shufflevector(a[i], a[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; ++i) a[i] = b[i];
  }
  for (int i = 0; i < 8; ++i) __builtin_memcpy(out + i * ld_out, &a[i], sizeof(Halves8));
}

HERO_SIMD static void transpose_16(const uint16_t* in, int64_t rows, int64_t cols, int64_t ld_in,
                                   int64_t padded, uint16_t* out, int64_t ld_out) {
  const int64_t whole_rows = rows / 8 * 8, whole_cols = cols / 8 * 8;
  // 32 rows at a time fill whole cache lines of the result.
  for (int64_t first = 0; first < whole_rows; first += 32) {
    const int64_t end = std::min(first + 32, whole_rows);
    for (int64_t c = 0; c < whole_cols; c += 8) {
      for (int64_t r = first; r < end; r += 8)
        transpose_8x8(in + r * ld_in + c, ld_in, out + c * ld_out + r, ld_out);
    }
  }
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = c < whole_cols ? whole_rows : 0; r < padded; ++r) {
      out[c * ld_out + r] = r < rows ? in[r * ld_in + c] : 0;
    }
  }
}

void transpose(const bf16* in, int64_t rows, int64_t cols, int64_t ld_in, int64_t padded, bf16* out,
               int64_t ld_out) {
  transpose_16(reinterpret_cast<const uint16_t*>(in), rows, cols, ld_in, padded,
               reinterpret_cast<uint16_t*>(out), ld_out);
}

}  // namespace hero::cpu
