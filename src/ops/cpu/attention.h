#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>

namespace hero::cpu {

/// Whether the fused kernels support causal attention of q [B, H, S, Q], k [B, Hkv, S', Q], v [B, Hkv, S',
/// P]: bf16, S = S', Q and P multiples of 16, rows contiguous.
bool supports_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// The same for a forward pass without documents in fp32: S = S', Q and P multiples of 16, rows
/// contiguous.
bool supports_attention_fp32(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// That pass: out [B, S, H, P] and the logsumexp [B, H, S] of the scores.
std::tuple<at::Tensor, at::Tensor> attention_forward_fp32(const at::Tensor& q, const at::Tensor& k,
                                                          const at::Tensor& v, double scale);

}  // namespace hero::cpu
