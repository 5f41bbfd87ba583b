// bf16 causal attention on packed GEMMs, forward pass. Scores are computed for 64 queries at a time against
// all visible keys, so the softmax needs no rescaling. Keys and values are packed once per KV head and reused
// by all its query heads. Panels of keys that belong to earlier documents than all 64 queries are skipped.
#include "ops/cpu/attention.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "ops/cpu/attention_operands.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/simd.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

constexpr float kMasked = -1e30f;  // a score whose exponential is zero

// Softmax of scores [begin, valid) of `keys`, zeros for the rest; returns the logsumexp. `keys` is a multiple
// of 32.
HERO_SIMD float softmax_row(float* scores, int64_t begin, int64_t valid, int64_t keys, float scale,
                            bf16* probs) {
  const int64_t skipped = vector_of(begin);
  zero_from(probs, 0, skipped);
  scores += skipped, probs += skipped, begin -= skipped, valid -= skipped, keys -= skipped;
  const int64_t last = last_vector(valid), width = last + kVector;
  fill_from(scores + last, valid - last, kMasked);
  if (begin > 0) fill_before(scores, begin, kMasked);
  float highest = scores[0];
  for (int64_t i = 0; i < width; ++i) highest = scores[i] > highest ? scores[i] : highest;
  const float shift = highest * scale;
  float sum = 0;
  for (int64_t i = 0; i < width; ++i) {
    scores[i] = exp_fast(scores[i] * scale - shift);
    sum += scores[i];
  }
  fill_from(scores + last, valid - last, 0);
  if (begin > 0) fill_before(scores, begin, 0);
  const float inverse = 1.0f / sum;
  for (int64_t i = 0; i < width; ++i) store(probs[i], scores[i] * inverse);
  zero_from(probs, width, keys);
  return shift + std::log(sum);
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
  auto out = at::empty({n.batch, n.length, n.heads, n.v}, q.options());
  auto lse = at::empty({n.batch, n.heads, n.length}, q.options().dtype(at::kFloat));
  const Heads from_q(q), from_k(k), from_v(v), to_out(out.transpose(1, 2));
  const int64_t k_size = n.padded() * n.qk, v_size = n.padded() * n.v, kv = n.batch * n.kv_heads;
  const auto keys_packed = scratch<bf16>(kv * k_size), values_packed = scratch<bf16>(kv * v_size);
  parallel_tasks(kv, [&](int64_t i) {
    const int64_t b = i / n.kv_heads, g = i % n.kv_heads;
    pack_transposed(from_k.at(b, g), n.length, n.qk, from_k.row, keys_packed.get() + i * k_size);
    pack_rows(from_v.at(b, g), n.length, n.v, from_v.row, values_packed.get() + i * v_size);
  });
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
      lse.data_ptr<float>()[head * n.length + first + r] =
          softmax_row(scores.get() + r * keys, from[r] - first_key, first + r + 1 - first_key, keys,
                      static_cast<float>(scale), probs.get() + r * keys);
    }
    multiply_rows(m, keys, probs.get(), keys, values_packed.get() + g * v_size, n.padded(), first_key, n.v,
                  rows.get(), n.v, false);
    round_rows(rows.get(), m, n.v, to_out.at(b, h, first), to_out.row);
  });
  return {out, lse};
}

}  // namespace hero::cpu
