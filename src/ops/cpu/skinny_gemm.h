#pragma once
// GEMM of a few rows, as in decoding, that reads the weights in place, without packing. fp32 accumulation,
// each result by one thread in an order that depends only on k.
#include <c10/util/BFloat16.h>

#include <cstdint>

namespace hero::cpu {

/// Up to this many rows, packing a bf16 weight costs more than it saves.
inline constexpr int64_t kSkinnyRows = 16;

/// y [m, n] = x [m, k] w^T for w [n, k], with row strides ldx, ldw, ldy; n and k multiples of 16.
/// Single-threaded.
void skinny_gemm(int64_t m, int64_t n, int64_t k, const c10::BFloat16* x, int64_t ldx, const c10::BFloat16* w,
                 int64_t ldw, float* y, int64_t ldy);
void skinny_gemm(int64_t m, int64_t n, int64_t k, const c10::BFloat16* x, int64_t ldx, const c10::BFloat16* w,
                 int64_t ldw, c10::BFloat16* y, int64_t ldy);
void skinny_gemm(int64_t m, int64_t n, int64_t k, const float* x, int64_t ldx, const float* w, int64_t ldw,
                 float* y, int64_t ldy);

/// y [m, n] = x [m, k] w for w [k, n]; n a multiple of 16. Single-threaded.
void skinny_gemm_transposed(int64_t m, int64_t n, int64_t k, const c10::BFloat16* x, int64_t ldx,
                            const c10::BFloat16* w, int64_t ldw, c10::BFloat16* y, int64_t ldy);
void skinny_gemm_transposed(int64_t m, int64_t n, int64_t k, const float* x, int64_t ldx,
                            const c10::BFloat16* w, int64_t ldw, float* y, int64_t ldy);
void skinny_gemm_transposed(int64_t m, int64_t n, int64_t k, const float* x, int64_t ldx, const float* w,
                            int64_t ldw, float* y, int64_t ldy);

}  // namespace hero::cpu
