#pragma once
// Products of few rows with bf16 weights, as they come up when text is generated: the weights are read once,
// where they lie, and never packed. Sums in fp32, each by one thread in one order.
#include <c10/util/BFloat16.h>

#include <cstdint>

namespace hero::cpu {

/// Up to this many rows packing a weight costs more than it saves.
inline constexpr int64_t kFewRows = 16;

/// y [m, n] = x [m, k] w^T for w [n, k], with row strides ldx, ldw, ldy; k a multiple of 16. One thread's
/// work.
void few_rows(int64_t m, int64_t n, int64_t k, const c10::BFloat16* x, int64_t ldx, const c10::BFloat16* w,
              int64_t ldw, float* y, int64_t ldy);
void few_rows(int64_t m, int64_t n, int64_t k, const c10::BFloat16* x, int64_t ldx, const c10::BFloat16* w,
              int64_t ldw, c10::BFloat16* y, int64_t ldy);

/// y [m, n] = x [m, k] w for w [k, n]; n a multiple of 16. One thread's work.
void few_rows_transposed(int64_t m, int64_t n, int64_t k, const c10::BFloat16* x, int64_t ldx,
                         const c10::BFloat16* w, int64_t ldw, c10::BFloat16* y, int64_t ldy);

}  // namespace hero::cpu
