#include "ops/cpu/gemm.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "io/error.h"
#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/simd.h"

namespace hero::cpu {

namespace {

const NamedGemmKernel& selected_kernel() {
  static const NamedGemmKernel& kernel = find_gemm_kernel(std::getenv("HERO_GEMM"));
  return kernel;
}

bool is_plain() {
  const char* value = std::getenv("HERO_PLAIN");
  const std::string_view setting = value ? value : "";
  if (!setting.empty() && setting != "0" && setting != "1")
    throw UserError("HERO_PLAIN: found " + std::string(setting) + ", expected 0 or 1");
  return setting == "1";
}

}  // namespace

bool supports_gemm(int64_t a, int64_t b, int64_t c) {
  static const bool plain = is_plain();
  return !plain && a % 16 == 0 && b % 16 == 0 && c % 16 == 0 && a > 0 && b > 0 && c > 0;
}

// Interleaves pairs of adjacent rows of b in 32-bit words.
HERO_SIMD static void interleave_rows(const uint16_t* b, int64_t k, int64_t k_valid, int64_t width,
                                      int64_t ld, uint32_t* out) {
  for (int64_t r = 0; r < k; r += 2) {
    const uint16_t* low = b + r * ld;
    uint32_t* row = out + r / 2 * width;
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

using Words16 = uint32_t __attribute__((vector_size(64)));

// Transposes 16 x 16 words: four rounds, each of which interleaves rows i and i + 8.
HERO_INLINE void transpose_16x16(const uint16_t* in, int64_t ld_in, uint32_t* out, int64_t ld_out) {
  Words16 a[16], b[16];
  for (int i = 0; i < 16; ++i) __builtin_memcpy(&a[i], in + i * ld_in, sizeof(Words16));
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 8; ++i) {
      b[2 * i] =
          __builtin_shufflevector(a[i], a[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14,
                                             30, 15, 31);
    }
    for (int i = 0; i < 16; ++i) a[i] = b[i];
  }
  for (int i = 0; i < 16; ++i) __builtin_memcpy(out + i * ld_out, &a[i], sizeof(Words16));
}

// b stored as [n, k]: pairs are already adjacent, so only words are transposed.
HERO_SIMD static void transpose_words(const uint16_t* b, int64_t k, int64_t width, int64_t ld,
                                      uint32_t* out) {
  const int64_t pairs = k / 2, whole = pairs / 16 * 16;
  for (int64_t c = 0; c < width; c += 16) {
    for (int64_t r = 0; r < whole; r += 16)
      transpose_16x16(b + c * ld + 2 * r, ld, out + r * width + c, width);
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

void pack(const bf16* b, int64_t k, int64_t n, int64_t ld, bool transposed, bf16* packed) {
  parallel_tasks(panels(n), [&](int64_t p) { pack_panel(b, k, k, n, ld, transposed, p, packed); });
}

void gemm_panel(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda, const bf16* packed, int64_t p,
                float* c, int64_t ldc, bool accumulate) {
  selected_kernel().multiply(m, panel_width(n, p), k, a, lda, packed + p * kPanelWidth * k, c, ldc,
                             accumulate);
}

void gemm(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda, const bf16* packed, float* c,
          int64_t ldc, bool accumulate) {
  for (int64_t p = 0; p < panels(n); ++p)
    gemm_panel(m, n, k, a, lda, packed, p, c + p * kPanelWidth, ldc, accumulate);
}

HERO_SIMD void round_rows(const float* in, int64_t m, int64_t width, bf16* out, int64_t ldc) {
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < width; ++c) store(out[r * ldc + c], in[r * width + c]);
  }
}

void gemm_bf16(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda, const bf16* packed, bf16* c,
               int64_t ldc) {
  alignas(64) float tile[kBlockRows * kPanelWidth];
  for (int64_t r = 0; r < m; r += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, m - r);
    for (int64_t p = 0; p < panels(n); ++p) {
      const int64_t width = panel_width(n, p);
      gemm_panel(rows, n, k, a + r * lda, lda, packed, p, tile, width, false);
      round_rows(tile, rows, width, c + r * ldc + p * kPanelWidth, ldc);
    }
  }
}

using Words8 = uint16_t __attribute__((vector_size(16)));

// Transposes 8 x 8 elements: three rounds, each of which interleaves rows i and i + 4.
HERO_INLINE void transpose_8x8(const uint16_t* in, int64_t ld_in, uint16_t* out, int64_t ld_out) {
  Words8 a[8], b[8];
  for (int i = 0; i < 8; ++i) __builtin_memcpy(&a[i], in + i * ld_in, sizeof(Words8));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) {
      b[2 * i] = __builtin_shufflevector(a[i], a[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; ++i) a[i] = b[i];
  }
  for (int i = 0; i < 8; ++i) __builtin_memcpy(out + i * ld_out, &a[i], sizeof(Words8));
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

void weight_gradient(const bf16* dy, int64_t ldy, const bf16* x, int64_t ldx, int64_t rows, int64_t n,
                     int64_t k, float* dw, int64_t ld, bool accumulate) {
  if (rows == 0 && !accumulate) {
    for (int64_t r = 0; r < n; ++r) std::fill_n(dw + r * ld, k, 0.0f);
  }
  if (rows == 0) return;
  const int64_t padded = round_up(rows, 32), all = panels(k);
  const auto x_packed = scratch<bf16>(padded * k);
  parallel_tasks(all, [&](int64_t p) { pack_panel(x, padded, rows, k, ldx, false, p, x_packed.get()); });
  // A task transposes a strip of dy and multiplies it while it is in cache. If there are fewer strips than
  // threads need, several tasks process the same strip with different panels.
  const int64_t strips = (n + kBlockRows - 1) / kBlockRows,
                wanted = std::clamp<int64_t>((2 * at::get_num_threads() + strips - 1) / strips, 1, all),
                share = (all + wanted - 1) / wanted, tasks = (all + share - 1) / share;
  parallel_tasks(strips * tasks, [&](int64_t i) {
    const int64_t r = i / tasks * kBlockRows, first = i % tasks * share, count = std::min(kBlockRows, n - r);
    const auto dy_t = scratch<bf16>(count * padded);
    transpose(dy + r, rows, count, ldy, padded, dy_t.get(), padded);
    for (int64_t p = first; p < std::min(all, first + share); ++p) {
      gemm_panel(count, k, padded, dy_t.get(), padded, x_packed.get(), p, dw + r * ld + p * kPanelWidth, ld,
                 accumulate);
    }
  });
}

void parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& task) {
  if (count <= grain) {
    const TileConfigScope scope;
    return count > 0 ? task(0, count) : void();
  }
  parallel_tasks((count + grain - 1) / grain,
                 [&](int64_t i) { task(i * grain, std::min(count, (i + 1) * grain)); });
}

void parallel_tasks(int64_t count, const std::function<void(int64_t)>& task) {
  std::exception_ptr failure;  // exceptions must not leave an OpenMP region
#pragma omp parallel num_threads(at::get_num_threads()) if (count > 1)
  {
    const TileConfigScope scope;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; ++i) {
      try {
        task(i);
      } catch (...) {
#pragma omp critical(hero_parallel_tasks)
        failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace hero::cpu
