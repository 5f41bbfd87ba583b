#pragma once
// Parts of a batch whose deterministic backward pass of attention takes bounded memory. Independent of CUDA:
// tested without a device.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace hero::ops::cuda {

/// Most bytes of score gradients, S^2 in bf16 per head, at a time: cuDNN's workspace.
inline constexpr int64_t kMaxScoreGradients = int64_t{2} << 30;

struct AttentionParts {
  int64_t sequences = 1, kv_heads = 1;  // per part; they divide B and Hkv

  /// Sizes of a part of a tensor [B, H, ...] or [B, Hkv, ...].
  std::vector<int64_t> sizes(at::IntArrayRef whole, int64_t all_kv_heads) const {
    auto part = whole.vec();
    part[0] = sequences;
    part[1] = part[1] / all_kv_heads * kv_heads;
    return part;
  }

  /// The part of x that begins at sequence b and KV head h.
  at::Tensor of(const at::Tensor& x, int64_t all_kv_heads, int64_t b, int64_t h) const {
    const int64_t group = x.size(1) / all_kv_heads;
    return x.narrow(0, b, sequences).narrow(1, h * group, kv_heads * group);
  }
};

/// Score gradients of one sequence and KV head, in bytes.
inline int64_t score_gradient_bytes(int64_t heads, int64_t kv_heads, int64_t length) {
  return heads / kv_heads * length * length * 2;
}

/// The largest parts whose score gradients take at most kMaxScoreGradients: whole sequences if possible.
/// Empty if those of one KV head take more.
inline std::optional<AttentionParts> attention_parts(int64_t batch, int64_t heads, int64_t kv_heads,
                                                     int64_t length) {
  const int64_t bytes = score_gradient_bytes(heads, kv_heads, length);
  if (bytes > kMaxScoreGradients) return std::nullopt;
  const auto largest_divisor = [](int64_t whole, int64_t most) {
    int64_t part = std::min(whole, most);
    while (whole % part != 0) --part;
    return part;
  };
  const int64_t all = kMaxScoreGradients / bytes;  // KV heads
  if (all < kv_heads) return AttentionParts{1, largest_divisor(kv_heads, all)};
  return AttentionParts{largest_divisor(batch, all / kv_heads), kv_heads};
}

}  // namespace hero::ops::cuda
