#pragma once
// bf16 matrix products with fp32 accumulation and fp32 results, built on gemm_block.h. The right-hand side
// lies in panels of at most 64 columns with pairs of rows interleaved. Every call is one thread's work;
// callers split rows, panels or experts among threads. Each output tile is computed whole by one call, so
// results do not depend on how tiles are scheduled.
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <functional>

namespace hero::cpu {

using bf16 = c10::BFloat16;

/// Columns of a packed panel; the last one may have 16, 32 or 48.
inline constexpr int64_t kPanel = 64;
/// Most rows of a block.
inline constexpr int64_t kRows = 64;

/// What multiplies blocks: the fastest of block_gemms(), or the one that HERO_GEMM in the environment names,
/// so that each can be tested anywhere that has it. Throws UserError for a name that is none of them.
const char* block_gemm_name();

/// Whether the shapes suit: every given size a multiple of 16. HERO_PLAIN=1 in the environment says no, so
/// that the plain forms can be tested.
bool suits_gemm(int64_t a, int64_t b = 16, int64_t c = 16);

/// Packs panel `p` of b [k, n] (row stride ld; `transposed`: stored as [n, k]) to its place packed +
/// p*kPanel*k. k even. Rows k0 <= r < k beyond `k_valid` are taken as zero.
void pack_panel(const bf16* b, int64_t k, int64_t k_valid, int64_t n, int64_t ld, bool transposed, int64_t p,
                bf16* packed);

/// All panels, in parallel.
void pack(const bf16* b, int64_t k, int64_t n, int64_t ld, bool transposed, bf16* packed);

inline int64_t panels(int64_t n) { return (n + kPanel - 1) / kPanel; }
inline int64_t panel_width(int64_t n, int64_t p) { return n - p * kPanel < kPanel ? n - p * kPanel : kPanel; }

/// c [m, width of panel p] (+)= a [m, k] * panel p.
void gemm_panel(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda, const bf16* packed, int64_t p,
                float* c, int64_t ldc, bool accumulate);

/// c [m, n] (+)= a [m, k] * packed b [k, n].
void gemm(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda, const bf16* packed, float* c,
          int64_t ldc, bool accumulate = false);

/// The same with the result rounded to bf16.
void gemm_bf16(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda, const bf16* packed, bf16* c,
               int64_t ldc);

/// out [m, width] (row stride ldc) = in [m, width] (its rows together) rounded to bf16.
void round_rows(const float* in, int64_t m, int64_t width, bf16* out, int64_t ldc);

/// out [cols, ld_out] = in [rows, cols]^T; columns rows <= r < padded of out are set to zero.
void transpose(const bf16* in, int64_t rows, int64_t cols, int64_t ld_in, int64_t padded, bf16* out,
               int64_t ld_out);

/// dw [n, k] (row stride ld) = dy^T x for dy [rows, n], x [rows, k] with row strides ldy, ldx; all threads.
void weight_gradient(const bf16* dy, int64_t ldy, const bf16* x, int64_t ldx, int64_t rows, int64_t n,
                     int64_t k, float* dw, int64_t ld, bool accumulate = false);

/// Runs task(i) for 0 <= i < count on all threads, each task once, in any order.
void parallel_tasks(int64_t count, const std::function<void(int64_t)>& task);

/// Runs task(first, end) for ranges of `grain` that cover 0 <= i < count; a single range runs where it is
/// called.
void parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& task);

/// Items to give a thread at a time where each costs this many products: fewer are not worth the waking.
inline int64_t grain(int64_t products) {
  return std::max<int64_t>(1, (1 << 17) / std::max<int64_t>(1, products));
}

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace hero::cpu
