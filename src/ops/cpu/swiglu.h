#pragma once
// silu(g) * u and its gradient by rows, for dense layers and experts.
#include <cstdint>

#include "ops/cpu/gemm.h"

namespace hero::cpu {

/// h [rows, f] = silu(g) * u for gate_up [rows, 2f] (gate first), row strides as given.
void swiglu_rows(const bf16* gate_up, int64_t rows, int64_t f, bf16* h, int64_t ld_h);
void swiglu_rows(const float* gate_up, int64_t rows, int64_t f, float* h, int64_t ld_h);

/// d_gate_up [rows, 2f] from dh [rows, f]; also writes h if it is not null.
void swiglu_backward_rows(const float* dh, const bf16* gate_up, int64_t rows, int64_t f, bf16* d_gate_up,
                          bf16* h);

}  // namespace hero::cpu
