#pragma once
#include <ATen/core/Tensor.h>

namespace hero::cpu {

/// Whether the fused kernels support causal attention of q [B, H, S, Q], k [B, Hkv, S', Q], v [B, Hkv, S',
/// P]: bf16, S = S', S a multiple of 32, Q and P multiples of 16, rows contiguous.
bool supports_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace hero::cpu
