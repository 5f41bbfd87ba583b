#pragma once
// GEMMs of bf16 or fp32 operands, for code that is the same for both.
#include <type_traits>

#include "ops/cpu/gemm.h"
#include "ops/cpu/gemm_fp32.h"
#include "ops/cpu/skinny_gemm.h"

namespace hero::cpu {

/// Up to this many rows skinny_gemm is faster, which needs no packing.
template <class T>
inline constexpr int64_t kUnpackedRows = std::is_same_v<T, bf16> ? kSkinnyRows : kSkinnyRowsFp32;

/// Packs panel `p` of b [k, n]; pack of gemm.h and gemm_fp32.h pack all.
inline void pack_weight_panel(const bf16* b, int64_t k, int64_t n, int64_t ld, bool transposed, int64_t p,
                              bf16* packed) {
  pack_panel(b, k, k, n, ld, transposed, p, packed);
}
inline void pack_weight_panel(const float* b, int64_t k, int64_t n, int64_t ld, bool transposed, int64_t p,
                              float* packed) {
  pack_panel(b, k, n, ld, transposed, p, packed);
}

/// c [m, n] = a [m, k] * packed b [k, n].
inline void multiply_packed(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda, const bf16* packed,
                            bf16* c, int64_t ldc) {
  gemm_bf16(m, n, k, a, lda, packed, c, ldc);
}
template <class T>
void multiply_packed(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* packed, float* c,
                     int64_t ldc) {
  gemm(m, n, k, a, lda, packed, c, ldc);
}

}  // namespace hero::cpu
