// fp32 causal attention of prompts, without gradients: as the bf16 forward pass, 64 queries at a time against
// all visible keys. Keys and values are packed once per KV head, keys zero-padded to a multiple of 16.

#include <algorithm>

#include "ops/cpu/attention.h"
#include "ops/cpu/empty.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/gemm_fp32.h"
#include "ops/cpu/score_rows.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/simd.h"

namespace hero::cpu {

bool supports_attention_fp32(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return q.scalar_type() == at::kFloat && q.size(0) > 0 && q.size(2) > 0 && q.size(2) == k.size(2) &&
         supports_gemm(q.size(3), v.size(3)) && q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1;
}

namespace {

HERO_SIMD float softmax_in_place(float* scores, int64_t valid, int64_t keys, float scale) {
  return softmax_row(scores, /*begin=*/0, valid, keys, scale, scores);
}

// Packs all panels of b [k, n] (row stride ld; `transposed`: stored as [n, k]).
void pack_head(const float* b, int64_t k, int64_t n, int64_t ld, bool transposed, float* packed) {
  for (int64_t p = 0; p < panels(n); ++p) pack_panel(b, k, n, ld, transposed, p, packed);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> attention_forward_fp32(const at::Tensor& q, const at::Tensor& k,
                                                          const at::Tensor& v, double scale) {
  const int64_t batch = q.size(0), heads = q.size(1), kv_heads = k.size(1), length = q.size(2),
                qk = q.size(3), width = v.size(3), padded = round_up(length, 16), kv = batch * kv_heads,
                groups = heads / kv_heads, blocks = (length + kBlockRows - 1) / kBlockRows;
  auto out = empty({batch, length, heads, width}, q.scalar_type());
  auto lse = empty({batch, heads, length}, q.scalar_type());
  const auto keys = scratch<float>(kv * padded * qk), values = scratch<float>(kv * length * width);
  const auto head_of = [](const at::Tensor& x, int64_t b, int64_t h) {
    return x.const_data_ptr<float>() + b * x.stride(0) + h * x.stride(1);
  };
  parallel_tasks(kv, [&](int64_t i) {
    const int64_t b = i / kv_heads, g = i % kv_heads;
    const auto rows = scratch<float>(padded * qk);
    copy_padded(head_of(k, b, g), k.stride(2), length, qk, rows.get(), padded, qk);
    pack_head(rows.get(), qk, padded, qk, /*transposed=*/true, keys.get() + i * padded * qk);
    pack_head(head_of(v, b, g), length, width, v.stride(2), /*transposed=*/false,
              values.get() + i * length * width);
  });
  auto* const lse_of = lse.data_ptr<float>();
  parallel_tasks(batch * heads * blocks, [&](int64_t i) {
    // Longest rows first, for load balance.
    const int64_t block = blocks - 1 - i / (batch * heads), head = i % (batch * heads), b = head / heads,
                  h = head % heads, g = b * kv_heads + h / groups, first = block * kBlockRows,
                  rows = std::min(kBlockRows, length - first), visible = round_up(first + rows, 16);
    const auto scores = scratch<float>(rows * visible);
    const float *query = head_of(q, b, h) + first * q.stride(2), *head_keys = keys.get() + g * padded * qk,
                *head_values = values.get() + g * length * width;
    for (int64_t p = 0; p < panels(visible); ++p) {
      gemm_panel(rows, panel_width(visible, p), qk, query, q.stride(2), head_keys + p * kPanelWidth * qk,
                 panel_width(padded, p), scores.get() + p * kPanelWidth, visible);
    }
    for (int64_t r = 0; r < rows; ++r) {
      lse_of[head * length + first + r] =
          softmax_in_place(scores.get() + r * visible, first + r + 1, visible, static_cast<float>(scale));
    }
    float* result = out.data_ptr<float>() + ((b * length + first) * heads + h) * width;
    for (int64_t p = 0; p < panels(width); ++p) {
      gemm_panel(rows, panel_width(width, p), first + rows, scores.get(), visible,
                 head_values + p * kPanelWidth * length, panel_width(width, p), result + p * kPanelWidth,
                 heads * width);
    }
  });
  return {out, lse};
}

}  // namespace hero::cpu
