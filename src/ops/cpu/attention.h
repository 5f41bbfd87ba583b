#pragma once
#include <ATen/core/Tensor.h>

namespace hero::cpu {

/// Whether the fused kernels take causal attention of q [B, H, S, Q], k [B, Hkv, S', Q], v [B, Hkv, S', P]:
/// bf16, as many queries as keys, S a multiple of 32, widths of 16, rows that lie together.
bool suits_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace hero::cpu
