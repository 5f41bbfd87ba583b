// Attention over KV caches. Tasks are a few query heads of a new position that read the same key head: scores
// against all visible keys, softmax, weighted values. Keys and values are read in place.
#include "ops/cached_attention.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <vector>

#include "ops/cpu/empty.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/skinny_gemm.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

constexpr int64_t kMostHeads = 4;  // per task; more would not read keys less often

// Scores q k^T of the keys from `first` on.
template <typename T>
HERO_INLINE void score_body(const T* q, const T* keys, int64_t key_row, int64_t width, int64_t first,
                            int64_t positions, acc_t<T>* scores) {
  for (int64_t j = first; j < positions; ++j) {
    const T* key = keys + j * key_row;
    acc_t<T> dot = 0;
    for (int64_t i = 0; i < width; ++i) dot += load(q[i]) * load(key[i]);
    scores[j] = dot;
  }
}

// The weights e^(scale (score - highest)) in place; returns their sum.
template <typename T>
HERO_INLINE T exponentials_body(T* scores, int64_t positions, T scale) {
  T highest = scores[0] * scale;
  for (int64_t j = 0; j < positions; ++j) {
    scores[j] *= scale;
    highest = scores[j] > highest ? scores[j] : highest;
  }
  T total = 0;
  for (int64_t j = 0; j < positions; ++j) {
    scores[j] = exp_fast(scores[j] - highest);
    total += scores[j];
  }
  return total;
}

template <typename T>
HERO_INLINE void weigh_body(const acc_t<T>* weights, const T* values, int64_t value_row, int64_t width,
                            int64_t positions, acc_t<T>* sum) {
  for (int64_t i = 0; i < width; ++i) sum[i] = 0;
  for (int64_t j = 0; j < positions; ++j) {
    const T* value = values + j * value_row;
    for (int64_t i = 0; i < width; ++i) sum[i] += weights[j] * load(value[i]);
  }
}

template <typename T>
HERO_INLINE void divide_body(const acc_t<T>* sum, int64_t width, acc_t<T> total, T* out) {
  const acc_t<T> inverse = 1 / total;
  for (int64_t i = 0; i < width; ++i) store(out[i], sum[i] * inverse);
}

#define HERO_ATTEND(T)                                                                             \
  HERO_SIMD void score(const T* q, const T* keys, int64_t key_row, int64_t width, int64_t first,   \
                       int64_t positions, acc_t<T>* scores) {                                      \
    score_body(q, keys, key_row, width, first, positions, scores);                                 \
  }                                                                                                \
  HERO_SIMD void weigh(const acc_t<T>* weights, const T* values, int64_t value_row, int64_t width, \
                       int64_t positions, acc_t<T>* sum) {                                         \
    weigh_body(weights, values, value_row, width, positions, sum);                                 \
  }                                                                                                \
  HERO_SIMD void divide(const acc_t<T>* sum, int64_t width, acc_t<T> total, T* out) {              \
    divide_body(sum, width, total, out);                                                           \
  }
HERO_ATTEND(bf16)
HERO_ATTEND(float)
HERO_ATTEND(double)
#undef HERO_ATTEND

HERO_SIMD float exponentials(float* scores, int64_t positions, float scale) {
  return exponentials_body(scores, positions, scale);
}
HERO_SIMD double exponentials(double* scores, int64_t positions, double scale) {
  return exponentials_body(scores, positions, scale);
}

// Query heads of one row that read one key head.
template <typename T>
struct HeadGroup {
  int64_t count;
  const T* q;  // [count, qk]
  int64_t q_row, qk;
  const T* keys;  // [positions, qk]
  int64_t key_row;
  const T* values;  // [positions, v]
  int64_t value_row, v, positions;
  T* out;  // [count, v]
};

// Reused by the tasks of a thread: [count, positions] and [count, v].
template <typename T>
struct Scratch {
  std::vector<acc_t<T>> scores, sums;
};

template <typename T>
void attend(const HeadGroup<T>& h, acc_t<T> scale, Scratch<T>& scratch) {
  scratch.scores.resize(h.count * h.positions);
  scratch.sums.resize(h.count * h.v);
  acc_t<T>*const scores = scratch.scores.data(), *const sums = scratch.sums.data();
  int64_t scored = 0;
  bool weighed = false;
  if constexpr (!std::is_same_v<T, double>) {
    if (supports_gemm(h.qk)) {
      scored = h.positions / 16 * 16;
      skinny_gemm(h.count, scored, h.qk, h.q, h.q_row, h.keys, h.key_row, scores, h.positions);
    }
  }
  std::array<acc_t<T>, kMostHeads> totals;
  for (int64_t i = 0; i < h.count; ++i) {
    score(h.q + i * h.q_row, h.keys, h.key_row, h.qk, scored, h.positions, scores + i * h.positions);
    totals[i] = exponentials(scores + i * h.positions, h.positions, scale);
  }
  if constexpr (!std::is_same_v<T, double>) {
    weighed = supports_gemm(h.v);
    if (weighed)
      skinny_gemm_transposed(h.count, h.v, h.positions, scores, h.positions, h.values, h.value_row, sums,
                             h.v);
  }
  for (int64_t i = 0; i < h.count; ++i) {
    if (!weighed) weigh(scores + i * h.positions, h.values, h.value_row, h.v, h.positions, sums + i * h.v);
    divide(sums + i * h.v, h.v, totals[i], h.out + i * h.v);
  }
}

template <typename T>
at::Tensor attention_typed(const at::Tensor& q, at::TensorList keys, at::TensorList values,
                           at::IntArrayRef lengths, at::IntArrayRef counts, int64_t v, double scale) {
  const int64_t rows = q.size(0), heads = q.size(1), qk = q.size(2), key_heads = keys[0].size(1);
  auto out = empty({rows, heads, v}, q.scalar_type());
  std::vector<std::pair<size_t, int64_t>>
      visible;  // for every row: its sequence and number of visible positions
  int64_t multiply_adds = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    for (int64_t r = 0; r < counts[i]; ++r) {
      visible.emplace_back(i, lengths[i] - counts[i] + r + 1);
      multiply_adds += visible.back().second * (qk + v);
    }
  }
  // The heads of a key head are split further if that makes fewer tasks than threads.
  const int64_t group = heads / key_heads;
  int64_t together = std::min(group, kMostHeads);
  while (together > 1 && rows * key_heads * ((group + together - 1) / together) < at::get_num_threads())
    together /= 2;
  const int64_t parts = (group + together - 1) / together, tasks = key_heads * parts;
  parallel_ranges(rows * tasks, grain(multiply_adds / rows * together), [&](int64_t first, int64_t end) {
    Scratch<T> scratch;
    for (int64_t i = first; i < end; ++i) {
      const int64_t r = i / tasks, g = i % tasks / parts, part = i % parts * together, h = g * group + part;
      const auto [sequence, positions] = visible[r];
      const auto &k = keys[sequence], &values_of = values[sequence];
      attend<T>({.count = std::min(together, group - part),
                 .q = q.const_data_ptr<T>() + r * q.stride(0) + h * q.stride(1),
                 .q_row = q.stride(1),
                 .qk = qk,
                 .keys = k.const_data_ptr<T>() + g * k.stride(1),
                 .key_row = k.stride(0),
                 .values = values_of.const_data_ptr<T>() + g * values_of.stride(1),
                 .value_row = values_of.stride(0),
                 .v = v,
                 .positions = positions,
                 .out = out.data_ptr<T>() + (r * heads + h) * v},
                static_cast<acc_t<T>>(scale), scratch);
    }
  });
  return out;
}

template <typename T>
at::Tensor heads_linear_typed(const at::Tensor& x, const at::Tensor& w, bool transposed) {
  const int64_t rows = x.size(0), heads = x.size(1), k = x.size(2), n = w.size(transposed ? 2 : 1);
  auto y = empty({rows, heads, n}, x.scalar_type());
  parallel_ranges(heads, product_grain(rows, k * n), [&](int64_t first, int64_t end) {
    for (int64_t h = first; h < end; ++h) {
      const T *from = x.const_data_ptr<T>() + h * x.stride(1),
              *weight = w.const_data_ptr<T>() + h * w.stride(0);
      T* const to = y.data_ptr<T>() + h * n;
      if (transposed) {
        skinny_gemm_transposed(rows, n, k, from, x.stride(0), weight, w.stride(1), to, heads * n);
      } else {
        skinny_gemm(rows, n, k, from, x.stride(0), weight, w.stride(1), to, heads * n);
      }
    }
  });
  return y;
}

}  // namespace

at::Tensor cached_attention(const at::Tensor& q, at::TensorList keys, at::TensorList values,
                            at::IntArrayRef lengths, at::IntArrayRef counts, int64_t v, double scale) {
  if (ops::last_dim_contiguous(q, keys, values)) {
    if (q.scalar_type() == at::kBFloat16)
      return attention_typed<bf16>(q, keys, values, lengths, counts, v, scale);
    if (q.scalar_type() == at::kFloat)
      return attention_typed<float>(q, keys, values, lengths, counts, v, scale);
    if (q.scalar_type() == at::kDouble)
      return attention_typed<double>(q, keys, values, lengths, counts, v, scale);
  }
  return ops::cached_attention_reference(q, keys, values, lengths, counts, v, scale);
}

at::Tensor heads_linear(const at::Tensor& x, const at::Tensor& w, bool transposed) {
  const bool supported =
      supports_gemm(x.size(2), w.size(transposed ? 2 : 1)) && x.stride(2) == 1 && w.stride(2) == 1;
  if (supported && x.scalar_type() == at::kBFloat16) return heads_linear_typed<bf16>(x, w, transposed);
  if (supported && x.scalar_type() == at::kFloat) return heads_linear_typed<float>(x, w, transposed);
  return ops::heads_linear_reference(x, w, transposed);
}

}  // namespace hero::cpu
