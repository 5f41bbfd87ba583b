// bf16 causal attention on packed GEMMs, forward pass. Scores are computed for 64 queries at a time against
// all visible keys, so the softmax needs no rescaling. Keys and values are packed once per KV head and reused
// by all its query heads. Panels of keys that belong to earlier documents than all 64 queries are skipped.
#include "ops/cpu/attention.h"

#include "ops/cpu/attention_operands.h"
#include "ops/cpu/empty.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/score_rows.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/simd.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

HERO_SIMD float softmax(float* scores, int64_t begin, int64_t valid, int64_t keys, float scale, bf16* probs) {
  return softmax_row(scores, begin, valid, keys, scale, probs);
}

}  // namespace

bool supports_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return q.scalar_type() == at::kBFloat16 && q.size(0) > 0 && q.size(2) > 0 && q.size(2) == k.size(2) &&
         supports_gemm(q.size(3), v.size(3)) && q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1;
}

std::tuple<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k,
                                                     const at::Tensor& v, double scale,
                                                     const std::optional<at::Tensor>& starts) {
  if (!starts && supports_attention_fp32(q, k, v)) return attention_forward_fp32(q, k, v, scale);
  if (!supports_attention(q, k, v)) return ops::attention_forward_reference(q, k, v, scale, starts);
  const AttentionSizes n(q, k, v);
  const DocumentStarts documents(starts, n.length);
  auto out = empty({n.batch, n.length, n.heads, n.v}, q.scalar_type());
  auto lse = empty({n.batch, n.heads, n.length}, at::kFloat);
  const Heads from_q(q), from_k(k), from_v(v), to_out(out.transpose(1, 2));
  const int64_t k_size = n.padded() * n.qk, v_size = n.padded() * n.v, kv = n.batch * n.kv_heads;
  const auto keys_packed = scratch<bf16>(kv * k_size), values_packed = scratch<bf16>(kv * v_size);
  parallel_tasks(kv, [&](int64_t i) {
    const int64_t b = i / n.kv_heads, g = i % n.kv_heads;
    pack_transposed(from_k.at(b, g), n.length, n.qk, from_k.row, keys_packed.get() + i * k_size);
    pack_rows(from_v.at(b, g), n.length, n.v, from_v.row, values_packed.get() + i * v_size);
  });
  auto* const lse_of = lse.data_ptr<float>();
  parallel_tasks(n.batch * n.heads * n.blocks(), [&](int64_t i) {
    // Longest rows first, for load balance.
    const int64_t block = n.blocks() - 1 - i / (n.batch * n.heads), head = i % (n.batch * n.heads);
    const int64_t b = head / n.heads, h = head % n.heads, g = b * n.kv_heads + h / n.groups();
    const int64_t m = n.rows(block), first = block * kBlockRows;
    const Starts from = documents.at(b, first);
    const int64_t first_key = from.first_panel(), keys = round_up(first + m, kPadding) - first_key;
    const auto scores = scratch<float>(m * keys), rows = scratch<float>(m * n.v);
    const auto probs = scratch<bf16>(m * keys);
    gemm(m, keys, n.qk, from_q.at(b, h, first), from_q.row, keys_packed.get() + g * k_size + first_key * n.qk,
         scores.get(), keys);
    for (int64_t r = 0; r < m; ++r) {
      lse_of[head * n.length + first + r] =
          softmax(scores.get() + r * keys, from[r] - first_key, first + r + 1 - first_key, keys,
                  static_cast<float>(scale), probs.get() + r * keys);
    }
    multiply_rows(m, keys, probs.get(), keys, values_packed.get() + g * v_size, n.padded(), first_key, n.v,
                  rows.get(), n.v, false);
    round_rows(rows.get(), m, n.v, to_out.at(b, h, first), to_out.row);
  });
  return {out, lse};
}

}  // namespace hero::cpu
