#pragma once
// fp32 GEMM of many rows. The right-hand side is packed in panels of at most kPanelWidth columns, [k, width];
// skinny_gemm.h needs no packing, but adds up the lanes of each result. Each result is a sum of blocks of k,
// in an order that depends only on k. Functions are single-threaded unless noted.
#include <cstdint>

namespace hero::cpu {

/// Up to this many rows, packing a weight costs more than it saves.
inline constexpr int64_t kSkinnyRowsFp32 = 64;

/// Packs panel `p` of b [k, n] (row stride ld; `transposed`: stored as [n, k]) at packed + p * kPanelWidth *
/// k; n a multiple of 16.
void pack_panel(const float* b, int64_t k, int64_t n, int64_t ld, bool transposed, int64_t p, float* packed);

/// Packs all panels, multi-threaded.
void pack(const float* b, int64_t k, int64_t n, int64_t ld, bool transposed, float* packed);

/// c [m, n] = a [m, k] * the first n columns of a panel with row stride ldb; n a multiple of 16, at most
/// kPanelWidth.
void gemm_panel(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* panel, int64_t ldb,
                float* c, int64_t ldc);

/// c [m, n] = a [m, k] * packed b [k, n].
void gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* packed, float* c,
          int64_t ldc);

}  // namespace hero::cpu
