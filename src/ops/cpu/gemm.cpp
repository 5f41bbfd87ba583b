#include "ops/cpu/gemm.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <exception>

#include "io/environment.h"
#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/simd.h"

namespace hero::cpu {

bool supports_gemm(int64_t a, int64_t b, int64_t c) {
  static const bool plain = environment_flag("HERO_PLAIN");
  return !plain && a % 16 == 0 && b % 16 == 0 && c % 16 == 0 && a > 0 && b > 0 && c > 0;
}

void gemm_panel(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda, const bf16* packed, int64_t p,
                float* c, int64_t ldc, bool accumulate) {
  selected_gemm_kernel().multiply(m, panel_width(n, p), k, a, lda, packed + p * kPanelWidth * k, c, ldc,
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
  const auto& kernel = selected_gemm_kernel();
  const bool rounds = kernel.multiply_rounded && k <= kernel.rounded_depth;
  alignas(64) float tile[kBlockRows * kPanelWidth];
  for (int64_t r = 0; r < m; r += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, m - r);
    for (int64_t p = 0; p < panels(n); ++p) {
      const int64_t width = panel_width(n, p);
      if (rounds) {
        kernel.multiply_rounded(rows, width, k, a + r * lda, lda, packed + p * kPanelWidth * k,
                                c + r * ldc + p * kPanelWidth, ldc);
        continue;
      }
      gemm_panel(rows, n, k, a + r * lda, lda, packed, p, tile, width, false);
      round_rows(tile, rows, width, c + r * ldc + p * kPanelWidth, ldc);
    }
  }
}

void pack_left(const bf16* a, int64_t rows, int64_t padded, int64_t m, int64_t ld, int64_t first,
               int64_t inner, bf16* packed) {
  const bool interleaved = selected_gemm_kernel().multiply_panels != nullptr;
  for (int64_t c = 0; c < m; c += kBlockRows) {
    const int64_t width = std::min(kBlockRows, m - c);
    bf16* strip = packed + c * inner;
    if (interleaved) {
      pack_panel(a + c, padded, rows, width, ld, /*transposed=*/false, 0, strip + first * width);
    } else {
      transpose(a + c, rows, width, ld, padded, strip + first, inner);
    }
  }
}

void gemm_left_panel(int64_t m, int64_t n, int64_t k, const bf16* strip, const bf16* packed, int64_t p,
                     float* c, int64_t ldc, bool accumulate) {
  const auto& kernel = selected_gemm_kernel();
  const int64_t width = panel_width(n, p);
  const bf16* panel = packed + p * kPanelWidth * k;
  if (kernel.multiply_panels) return kernel.multiply_panels(m, width, k, strip, panel, c, ldc, accumulate);
  kernel.multiply(m, width, k, strip, k, panel, c, ldc, accumulate);
}

void gemm_left(int64_t m, int64_t n, int64_t k, const bf16* strip, const bf16* packed, float* c, int64_t ldc,
               bool accumulate) {
  for (int64_t p = 0; p < panels(n); ++p)
    gemm_left_panel(m, n, k, strip, packed, p, c + p * kPanelWidth, ldc, accumulate);
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
  // A task packs a strip of dy and multiplies it while it is in cache. If there are fewer strips than
  // threads need, several tasks process the same strip with different panels.
  const int64_t strips = (n + kBlockRows - 1) / kBlockRows,
                wanted = std::clamp<int64_t>((2 * at::get_num_threads() + strips - 1) / strips, 1, all),
                share = (all + wanted - 1) / wanted, tasks = (all + share - 1) / share;
  parallel_tasks(strips * tasks, [&](int64_t i) {
    const int64_t r = i / tasks * kBlockRows, first = i % tasks * share, count = std::min(kBlockRows, n - r);
    const auto strip = scratch<bf16>(count * padded);
    pack_left(dy + r, rows, padded, count, ldy, 0, padded, strip.get());
    for (int64_t p = first; p < std::min(all, first + share); ++p) {
      gemm_left_panel(count, k, padded, strip.get(), x_packed.get(), p, dw + r * ld + p * kPanelWidth, ld,
                      accumulate);
    }
  });
}

void parallel_ranges(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> task) {
  parallel_tasks((count + grain - 1) / grain,
                 [&](int64_t i) { task(i * grain, std::min(count, (i + 1) * grain)); });
}

void parallel_tasks(int64_t count, c10::function_ref<void(int64_t)> task) {
  if (count <= 1) {  // libgomp would allocate a team of one thread
    const TileConfigScope scope;
    if (count == 1) task(0);
    return;
  }
  std::exception_ptr failure;  // exceptions must not leave an OpenMP region
#pragma omp parallel num_threads(at::get_num_threads())
  {
    const TileConfigScope scope;
#pragma omp for schedule(dynamic, 1) nowait  // the region itself ends with a barrier
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
