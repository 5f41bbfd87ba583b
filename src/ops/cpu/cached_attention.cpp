// Attention over KV caches. Tasks are query heads of new positions: scores against all visible keys, softmax,
// weighted values. Keys and values are read in place.
#include "ops/cached_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <vector>

#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/skinny_gemm.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

struct Sizes {
  int64_t positions, key_row, value_row, qk, v;
};

// Scores q k^T of the keys from `first` on.
template <typename T>
HERO_INLINE void score_body(const T* q, const T* keys, const Sizes& n, int64_t first, acc_t<T>* scores) {
  for (int64_t j = first; j < n.positions; ++j) {
    const T* key = keys + j * n.key_row;
    acc_t<T> dot = 0;
    for (int64_t i = 0; i < n.qk; ++i) dot += load(q[i]) * load(key[i]);
    scores[j] = dot;
  }
}

// Softmax of the scores and weighted sum of the values.
template <typename T>
HERO_INLINE void attend_body(const T* values, const Sizes& n, acc_t<T> scale, acc_t<T>* scores, acc_t<T>* sum,
                             T* out) {
  acc_t<T> highest = scores[0] * scale;
  for (int64_t j = 0; j < n.positions; ++j) {
    scores[j] *= scale;
    highest = scores[j] > highest ? scores[j] : highest;
  }
  acc_t<T> total = 0;
  for (int64_t j = 0; j < n.positions; ++j) {
    scores[j] = exp_fast(scores[j] - highest);
    total += scores[j];
  }
  for (int64_t i = 0; i < n.v; ++i) sum[i] = 0;
  for (int64_t j = 0; j < n.positions; ++j) {
    const T* value = values + j * n.value_row;
    for (int64_t i = 0; i < n.v; ++i) sum[i] += scores[j] * load(value[i]);
  }
  const acc_t<T> inverse = 1 / total;
  for (int64_t i = 0; i < n.v; ++i) store(out[i], sum[i] * inverse);
}

#define HERO_ATTEND(T)                                                                                    \
  HERO_SIMD void score(const T* q, const T* keys, const Sizes& n, int64_t first, acc_t<T>* scores) {      \
    score_body(q, keys, n, first, scores);                                                                \
  }                                                                                                       \
  HERO_SIMD void attend(const T* values, const Sizes& n, acc_t<T> scale, acc_t<T>* scores, acc_t<T>* sum, \
                        T* out) {                                                                         \
    attend_body(values, n, scale, scores, sum, out);                                                      \
  }
HERO_ATTEND(bf16)
HERO_ATTEND(float)
HERO_ATTEND(double)
#undef HERO_ATTEND

template <typename T>
at::Tensor attention_typed(const at::Tensor& q, at::TensorList keys, at::TensorList values,
                           at::IntArrayRef lengths, at::IntArrayRef counts, int64_t v, double scale) {
  const int64_t rows = q.size(0), heads = q.size(1), qk = q.size(2);
  auto out = at::empty({rows, heads, v}, q.options());
  std::vector<std::pair<size_t, int64_t>>
      visible;  // for every row: its sequence and number of visible positions
  int64_t multiply_adds = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    for (int64_t r = 0; r < counts[i]; ++r) {
      visible.emplace_back(i, lengths[i] - counts[i] + r + 1);
      multiply_adds += visible.back().second * (qk + v);
    }
  }
  parallel_ranges(rows * heads, grain(multiply_adds / rows), [&](int64_t first, int64_t end) {
    std::vector<acc_t<T>> scores, sum(v);
    for (int64_t i = first; i < end; ++i) {
      const int64_t r = i / heads, h = i % heads;
      const auto [sequence, positions] = visible[r];
      const auto &k = keys[sequence], &values_of = values[sequence];
      const int64_t g = h / (heads / k.size(1));
      scores.resize(positions);
      const Sizes n{positions, k.stride(0), values_of.stride(0), qk, v};
      const T *query = q.const_data_ptr<T>() + r * q.stride(0) + h * q.stride(1),
              *head_keys = k.const_data_ptr<T>() + g * k.stride(1);
      int64_t scored = 0;
      if constexpr (std::is_same_v<T, bf16>) {
        if (supports_gemm(qk)) {
          scored = positions / 16 * 16;
          skinny_gemm(1, scored, qk, query, qk, head_keys, k.stride(0), scores.data(), positions);
        }
      }
      score(query, head_keys, n, scored, scores.data());
      attend(values_of.const_data_ptr<T>() + g * values_of.stride(1), n, static_cast<acc_t<T>>(scale),
             scores.data(), sum.data(), out.data_ptr<T>() + i * v);
    }
  });
  return out;
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
  const int64_t rows = x.size(0), heads = x.size(1), k = x.size(2), n = w.size(transposed ? 2 : 1);
  if (x.scalar_type() != at::kBFloat16 || !supports_gemm(k, n) || x.stride(2) != 1 || w.stride(2) != 1)
    return ops::heads_linear_reference(x, w, transposed);
  auto y = at::empty({rows, heads, n}, x.options());
  const auto multiply =
      transposed ? skinny_gemm_transposed : static_cast<decltype(&skinny_gemm_transposed)>(skinny_gemm);
  parallel_ranges(heads, grain(rows * k * n), [&](int64_t first, int64_t end) {
    for (int64_t h = first; h < end; ++h) {
      multiply(rows, n, k, x.const_data_ptr<bf16>() + h * x.stride(1), x.stride(0),
               w.const_data_ptr<bf16>() + h * w.stride(0), w.stride(1), y.data_ptr<bf16>() + h * n,
               heads * n);
    }
  });
  return y;
}

}  // namespace hero::cpu
