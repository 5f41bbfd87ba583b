// Backward pass of the bf16 causal attention. Each KV head is one task, so gradients are accumulated in a
// fixed order. The logsumexp is known, so scores are computed for blocks of keys.

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

constexpr int64_t kKeyBlock = 2 * kPanelWidth;  // keys per block, so that intermediates stay in cache

// From scores and dprobs of a row: its probabilities and the gradient of q k^T. Those outside of [begin,
// valid) are zero.
HERO_SIMD void softmax_backward_row(float* scores, const float* dprobs, int64_t begin, int64_t valid,
                                    int64_t keys, float scale, float lse, float delta, bf16* probs,
                                    bf16* dscores) {
  const int64_t skipped = begin < valid ? vector_of(begin) : keys;
  zero_from(probs, 0, skipped);
  zero_from(dscores, 0, skipped);
  if (skipped == keys) return;
  scores += skipped, dprobs += skipped, probs += skipped, dscores += skipped;
  begin -= skipped, valid -= skipped, keys -= skipped;
  const int64_t last = last_vector(valid), width = last + kVector;
  for (int64_t i = 0; i < width; ++i) scores[i] = exp_fast(scores[i] * scale - lse);
  fill_from(scores + last, valid - last, 0);
  if (begin > 0) fill_before(scores, begin, 0);
  for (int64_t i = 0; i < width; ++i) {
    store(probs[i], scores[i]);
    store(dscores[i], scores[i] * (dprobs[i] - delta) * scale);
  }
  zero_from(probs, width, keys);
  zero_from(dscores, width, keys);
}

HERO_SIMD float dot_row(const bf16* a, const bf16* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += load(a[i]) * load(b[i]);
  return sum;
}

// Gradients of one KV head and all its query heads.
class BackwardTask {
 public:
  BackwardTask(const AttentionSizes& n, double scale)
      : n_(n),
        scale_(static_cast<float>(scale)),
        keys_(scratch<bf16>(n.padded() * n.qk)),
        key_rows_(scratch<bf16>(n.padded() * n.qk)),
        values_(scratch<bf16>(n.padded() * n.v)),
        queries_(scratch<bf16>(kBlockRows * n.qk)),
        douts_(scratch<bf16>(kBlockRows * n.v)),
        probs_(scratch<bf16>(kBlockRows * kKeyBlock)),
        dscores_(scratch<bf16>(kBlockRows * kKeyBlock)),
        strips_(scratch<bf16>(kBlockRows * kKeyBlock)),
        scores_(scratch<float>(kBlockRows * kKeyBlock)),
        dprobs_(scratch<float>(kBlockRows * kKeyBlock)),
        dq_(scratch<float>(kBlockRows * n.qk)),
        dk_(scratch<float>(n.padded() * n.qk)),
        dv_(scratch<float>(n.padded() * n.v)) {
    std::fill_n(dk_.get(), n.padded() * n.qk, 0.0f);
    std::fill_n(dv_.get(), n.padded() * n.v, 0.0f);
  }

  void pack_kv(const bf16* k, int64_t k_row, const bf16* v, int64_t v_row) {
    pack_transposed(k, n_.length, n_.qk, k_row, keys_.get());
    pack_rows(k, n_.length, n_.qk, k_row, key_rows_.get());
    pack_transposed(v, n_.length, n_.v, v_row, values_.get());
  }

  // `q`, `dout`, `out`: rows of query block `block`; `starts`: of these rows.
  void add(int64_t block, Starts starts, const bf16* q, int64_t q_row, const bf16* dout, const bf16* out,
           int64_t out_row, const float* lse, bf16* dq, int64_t dq_row) {
    const int64_t m = n_.rows(block), first = block * kBlockRows, keys = round_up(first + m, kPadding);
    pack_rows(dout, m, n_.v, out_row, douts_.get());
    pack_rows(q, m, n_.qk, q_row, queries_.get());
    float delta[kBlockRows];
    for (int64_t r = 0; r < m; ++r) delta[r] = dot_row(dout + r * out_row, out + r * out_row, n_.v);
    const int64_t first_key = starts.first_panel();
    for (int64_t s = first_key; s < keys; s += kKeyBlock) {
      const int64_t width = std::min(kKeyBlock, keys - s);
      gemm(m, width, n_.qk, q, q_row, keys_.get() + s * n_.qk, scores_.get(), width);
      gemm(m, width, n_.v, dout, out_row, values_.get() + s * n_.v, dprobs_.get(), width);
      for (int64_t r = 0; r < m; ++r) {
        softmax_backward_row(scores_.get() + r * width, dprobs_.get() + r * width,
                             std::max<int64_t>(0, starts[r] - s), std::min(width, first + r + 1 - s), width,
                             scale_, lse[r], delta[r], probs_.get() + r * width, dscores_.get() + r * width);
      }
      multiply_rows(m, width, dscores_.get(), width, key_rows_.get(), n_.padded(), s, n_.qk, dq_.get(), n_.qk,
                    s > first_key);
      add_transposed(probs_.get(), m, width, douts_.get(), n_.v, dv_.get() + s * n_.v);
      add_transposed(dscores_.get(), m, width, queries_.get(), n_.qk, dk_.get() + s * n_.qk);
    }
    round_rows(dq_.get(), m, n_.qk, dq, dq_row);
  }

  void store_kv_gradients(bf16* dk, int64_t dk_row, bf16* dv, int64_t dv_row) const {
    round_rows(dk_.get(), n_.length, n_.qk, dk, dk_row);
    round_rows(dv_.get(), n_.length, n_.v, dv, dv_row);
  }

 private:
  // sum [keys, width] += x [m, keys]^T * the packed and padded rows [m, width].
  void add_transposed(const bf16* x, int64_t m, int64_t keys, const bf16* packed, int64_t width, float* sum) {
    const int64_t padded = round_up(m, kPadding);
    pack_left(x, m, padded, keys, keys, 0, padded, strips_.get());
    for (int64_t s = 0; s < keys; s += kBlockRows) {
      gemm_left(std::min(kBlockRows, keys - s), width, padded, strips_.get() + s * padded, packed,
                sum + s * width, width, /*accumulate=*/true);
    }
  }

  AttentionSizes n_;
  float scale_;
  Scratch<bf16> keys_, key_rows_, values_, queries_, douts_, probs_, dscores_, strips_;
  Scratch<float> scores_, dprobs_, dq_, dk_, dv_;
};

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& dout, const at::Tensor& q,
                                                                  const at::Tensor& k, const at::Tensor& v,
                                                                  const at::Tensor& out,
                                                                  const at::Tensor& lse, double scale,
                                                                  const std::optional<at::Tensor>& starts) {
  if (!supports_attention(q, k, v))
    return ops::attention_backward_reference(dout, q, k, v, out, lse, scale, starts);
  const AttentionSizes n(q, k, v);
  const DocumentStarts documents(starts, n.length);
  const auto dq = empty({n.batch, n.length, n.heads, n.qk}, q.scalar_type()).transpose(1, 2),
             dk = empty({n.batch, n.length, n.kv_heads, n.qk}, q.scalar_type()).transpose(1, 2),
             dv = empty({n.batch, n.length, n.kv_heads, n.v}, q.scalar_type()).transpose(1, 2);
  const Heads from_q(q), from_k(k), from_v(v), from_out(out.transpose(1, 2)), from_dout(dout.transpose(1, 2)),
      to_q(dq), to_k(dk), to_v(dv);
  parallel_tasks(n.batch * n.kv_heads, [&](int64_t i) {
    const int64_t b = i / n.kv_heads, g = i % n.kv_heads;
    BackwardTask task(n, scale);
    task.pack_kv(from_k.at(b, g), from_k.row, from_v.at(b, g), from_v.row);
    for (int64_t h = g * n.groups(); h < (g + 1) * n.groups(); ++h) {
      for (int64_t block = 0; block < n.blocks(); ++block) {
        const int64_t s = block * kBlockRows;
        task.add(block, documents.at(b, s), from_q.at(b, h, s), from_q.row, from_dout.at(b, h, s),
                 from_out.at(b, h, s), from_out.row,
                 lse.const_data_ptr<float>() + (b * n.heads + h) * n.length + s, to_q.at(b, h, s), to_q.row);
      }
    }
    task.store_kv_gradients(to_k.at(b, g), to_k.row, to_v.at(b, g), to_v.row);
  });
  return {dq, dk, dv};
}

}  // namespace hero::cpu
