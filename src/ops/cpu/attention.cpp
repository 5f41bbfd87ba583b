// bf16 causal attention on packed GEMMs. The forward pass computes scores for 64 queries at a time against
// all visible keys, so the softmax needs no rescaling. Keys and values are packed once per KV head and reused
// by all its query heads. In the backward pass each KV head is one task, so gradients are accumulated in a
// fixed order; the logsumexp is known there, so scores are computed for blocks of keys. Panels of keys that
// belong to earlier documents than all 64 queries are skipped. Packed operands are zero-padded to a multiple
// of 32 positions, so any length is supported.
#include "ops/cpu/attention.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/simd.h"
#include "ops/reference.h"

namespace hero::cpu {

bool supports_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return q.scalar_type() == at::kBFloat16 && q.size(0) > 0 && q.size(2) > 0 && q.size(2) == k.size(2) &&
         supports_gemm(q.size(3), v.size(3)) && q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1;
}

namespace {

constexpr int64_t kPadding = 32;  // positions, as AMX tiles multiply 32 rows at a time
constexpr int64_t kKeyBlock =
    2 * kPanelWidth;  // keys per block in the backward pass, so that intermediates stay in cache

// [B, H, S, P] with contiguous rows.
struct Heads {
  bf16* data;
  int64_t batch, head, row;

  explicit Heads(const at::Tensor& x)
      : data(x.data_ptr<bf16>()), batch(x.stride(0)), head(x.stride(1)), row(x.stride(2)) {}
  bf16* at(int64_t b, int64_t h, int64_t s = 0) const { return data + b * batch + h * head + s * row; }
};

struct Sizes {
  int64_t batch, heads, kv_heads, length, qk, v;

  Sizes(const at::Tensor& q_tensor, const at::Tensor& k_tensor, const at::Tensor& v_tensor)
      : batch(q_tensor.size(0)),
        heads(q_tensor.size(1)),
        kv_heads(k_tensor.size(1)),
        length(q_tensor.size(2)),
        qk(q_tensor.size(3)),
        v(v_tensor.size(3)) {}
  int64_t groups() const { return heads / kv_heads; }
  int64_t blocks() const { return (length + kBlockRows - 1) / kBlockRows; }
  int64_t rows(int64_t block) const { return std::min(kBlockRows, length - block * kBlockRows); }
  int64_t padded() const { return round_up(length, kPadding); }
};

// First visible key of each query of a block, nondecreasing; 0 without documents.
struct Starts {
  const int64_t* data = nullptr;

  int64_t operator[](int64_t row) const { return data ? data[row] : 0; }
  // First key of the panel in which the block's visible keys begin.
  int64_t first_panel() const { return (*this)[0] / kPanelWidth * kPanelWidth; }
};

// Starts of sequences [B, S].
class DocumentStarts {
 public:
  DocumentStarts(const std::optional<at::Tensor>& starts, int64_t length)
      : data_(starts ? starts->const_data_ptr<int64_t>() : nullptr), length_(length) {}
  Starts at(int64_t b, int64_t first) const { return {data_ ? data_ + b * length_ + first : nullptr}; }

 private:
  const int64_t* data_;
  int64_t length_;
};

// Packs x^T [width, rows], padded, as the right-hand side of a GEMM over the width.
void pack_transposed(const bf16* x, int64_t rows, int64_t width, int64_t ld, bf16* packed) {
  const int64_t whole = rows / kPanelWidth, rest = rows % kPanelWidth, padded = round_up(rest, kPadding);
  for (int64_t p = 0; p < whole; ++p) pack_panel(x, width, width, rows, ld, /*transposed=*/true, p, packed);
  if (rest == 0) return;
  const auto last = scratch<bf16>(padded * width);
  copy_padded(x + whole * kPanelWidth * ld, ld, rest, width, last.get(), padded, width);
  pack_panel(last.get(), width, width, padded, width, /*transposed=*/true, 0,
             packed + whole * kPanelWidth * width);
}

// Packs x [rows, width], padded, as the right-hand side of a GEMM over the rows.
void pack_rows(const bf16* x, int64_t rows, int64_t width, int64_t ld, bf16* packed) {
  for (int64_t p = 0; p < panels(width); ++p)
    pack_panel(x, round_up(rows, kPadding), rows, width, ld, /*transposed=*/false, p, packed);
}

// c [m, width] (+)= a [m, k] * rows [first, first + k) of `packed`, which has `rows` rows; `first` must be
// even.
void multiply_rows(int64_t m, int64_t k, const bf16* a, int64_t lda, const bf16* packed, int64_t rows,
                   int64_t first, int64_t width, float* c, int64_t ldc, bool accumulate) {
  for (int64_t p = 0; p < panels(width); ++p) {
    const int64_t columns = panel_width(width, p);
    gemm_panel(m, columns, k, a, lda, packed + p * kPanelWidth * rows + first * columns, 0,
               c + p * kPanelWidth, ldc, accumulate);
  }
}

constexpr int kVector = 16;

// Sets all but the first n elements of a vector to `rest`. Writes the whole vector, because scalar stores
// would break store-to-load forwarding of the next vector read.
HERO_INLINE void fill_from(float* x, int64_t n, float rest) {
  const int count = static_cast<int>(n);
  for (int i = 0; i < kVector; ++i) x[i] = i < count ? x[i] : rest;
}

// Sets the first n elements of a vector to `value`, as fill_from.
HERO_INLINE void fill_before(float* x, int64_t n, float value) {
  const int count = static_cast<int>(n);
  for (int i = 0; i < kVector; ++i) x[i] = i < count ? value : x[i];
}

// Start of the vector that contains element i.
HERO_INLINE int64_t vector_of(int64_t i) { return i & -kVector; }
// Start of the vector that contains the last of `valid` scores.
HERO_INLINE int64_t last_vector(int64_t valid) { return vector_of(valid - 1); }

HERO_INLINE void zero_from(bf16* x, int64_t first, int64_t end) {
  for (int64_t i = first; i < end; ++i) x[i].x = 0;
}

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
  BackwardTask(const Sizes& n, double scale)
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

  Sizes n_;
  float scale_;
  Scratch<bf16> keys_, key_rows_, values_, queries_, douts_, probs_, dscores_, strips_;
  Scratch<float> scores_, dprobs_, dq_, dk_, dv_;
};

}  // namespace

std::tuple<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k,
                                                     const at::Tensor& v, double scale,
                                                     const std::optional<at::Tensor>& starts) {
  if (!starts && supports_attention_fp32(q, k, v)) return attention_forward_fp32(q, k, v, scale);
  if (!supports_attention(q, k, v)) return ops::attention_forward_reference(q, k, v, scale, starts);
  const Sizes n(q, k, v);
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

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& dout, const at::Tensor& q,
                                                                  const at::Tensor& k, const at::Tensor& v,
                                                                  const at::Tensor& out,
                                                                  const at::Tensor& lse, double scale,
                                                                  const std::optional<at::Tensor>& starts) {
  if (!supports_attention(q, k, v))
    return ops::attention_backward_reference(dout, q, k, v, out, lse, scale, starts);
  const Sizes n(q, k, v);
  const DocumentStarts documents(starts, n.length);
  const auto dq = at::empty({n.batch, n.length, n.heads, n.qk}, q.options()).transpose(1, 2),
             dk = at::empty({n.batch, n.length, n.kv_heads, n.qk}, q.options()).transpose(1, 2),
             dv = at::empty({n.batch, n.length, n.kv_heads, n.v}, q.options()).transpose(1, 2);
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
