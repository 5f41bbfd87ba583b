#pragma once
// bf16 GEMM with fp32 accumulation and fp32 results, on a kernel of gemm_kernels.h: the fastest, or the one
// that the environment variable HERO_GEMM names (UserError if there is none). The right-hand side is packed
// in panels of at most 64 columns with pairs of rows interleaved. Functions are single-threaded unless noted;
// callers distribute rows, panels or experts over threads. Each output tile is computed by one call, so
// results do not depend on scheduling.
#include <c10/util/BFloat16.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <cstdint>

namespace hero::cpu {

using bf16 = c10::BFloat16;

/// Columns of a packed panel; the last one may have 16, 32 or 48.
inline constexpr int64_t kPanelWidth = 64;
/// Maximum rows of a block.
inline constexpr int64_t kBlockRows = 64;

/// Whether the fused kernels support these sizes: all are positive multiples of 16. False if the environment
/// variable HERO_PLAIN is 1: then operators use their reference implementations. UserError if it is neither 0
/// nor 1.
bool supports_gemm(int64_t a, int64_t b = 16, int64_t c = 16);

/// Packs panel `p` of b [k, n] (row stride ld; `transposed`: stored as [n, k]) at packed + p*kPanelWidth*k; k
/// must be even. Rows from `k_valid` on are zero.
void pack_panel(const bf16* b, int64_t k, int64_t k_valid, int64_t n, int64_t ld, bool transposed, int64_t p,
                bf16* packed);

/// Packs all panels, multi-threaded.
void pack(const bf16* b, int64_t k, int64_t n, int64_t ld, bool transposed, bf16* packed);

inline int64_t panels(int64_t n) { return (n + kPanelWidth - 1) / kPanelWidth; }
inline int64_t panel_width(int64_t n, int64_t p) {
  return n - p * kPanelWidth < kPanelWidth ? n - p * kPanelWidth : kPanelWidth;
}

/// c [m, width of panel p] (+)= a [m, k] * panel p.
void gemm_panel(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda, const bf16* packed, int64_t p,
                float* c, int64_t ldc, bool accumulate);

/// c [m, n] (+)= a [m, k] * packed b [k, n].
void gemm(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda, const bf16* packed, float* c,
          int64_t ldc, bool accumulate = false);

/// The same with the result rounded to bf16.
void gemm_bf16(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda, const bf16* packed, bf16* c,
               int64_t ldc);

/// out [m, width] (row stride ldc) = in [m, width] (contiguous) rounded to bf16.
void round_rows(const float* in, int64_t m, int64_t width, bf16* out, int64_t ldc);

/// out [cols, ld_out] = in [rows, cols]^T; columns rows <= r < padded of out are set to zero.
void transpose(const bf16* in, int64_t rows, int64_t cols, int64_t ld_in, int64_t padded, bf16* out,
               int64_t ld_out);

/// Packs rows [first, first + rows) of a [inner, m] (row stride ld) for products a^T b; rows from `rows` to
/// `padded` are zero, `first` and `padded` are even. The strip of columns [c, c + kBlockRows) is at `packed`
/// + c * inner; its format depends on the kernel.
void pack_left(const bf16* a, int64_t rows, int64_t padded, int64_t m, int64_t ld, int64_t first,
               int64_t inner, bf16* packed);

/// c [m, width of panel p] (+)= a^T [m, k] * panel p of the packed b [k, n], for a strip of m <= kBlockRows
/// columns that pack_left packed.
void gemm_left_panel(int64_t m, int64_t n, int64_t k, const bf16* strip, const bf16* packed, int64_t p,
                     float* c, int64_t ldc, bool accumulate);

/// c [m, n] (+)= a^T [m, k] * packed b [k, n], for the same strip.
void gemm_left(int64_t m, int64_t n, int64_t k, const bf16* strip, const bf16* packed, float* c, int64_t ldc,
               bool accumulate = false);

/// dw [n, k] (row stride ld) (+)= dy^T x for dy [rows, n], x [rows, k] with row strides ldy, ldx;
/// multi-threaded.
void weight_gradient(const bf16* dy, int64_t ldy, const bf16* x, int64_t ldx, int64_t rows, int64_t n,
                     int64_t k, float* dw, int64_t ld, bool accumulate = false);

/// Runs task(i) once for each 0 <= i < count on all threads, in any order; a single task runs on the calling
/// thread.
void parallel_tasks(int64_t count, c10::function_ref<void(int64_t)> task);

/// Rows per task of kernels that do little work per row.
inline constexpr int64_t kStrip = 64;

/// Runs task(first, end) for ranges of `grain` that cover 0 <= i < count; a single range runs on the calling
/// thread.
void parallel_ranges(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> task);

/// Grain size for items of this many multiply-adds each; smaller tasks do not amortize the threading
/// overhead.
inline int64_t grain(int64_t multiply_adds) {
  return std::max<int64_t>(1, (1 << 17) / std::max<int64_t>(1, multiply_adds));
}

/// Grain size for items that multiply `rows` rows by `weights` weights each. Reading the weights takes as
/// long as multiplying four rows.
inline int64_t product_grain(int64_t rows, int64_t weights) {
  return grain(std::max<int64_t>(rows, 4) * weights);
}

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace hero::cpu
