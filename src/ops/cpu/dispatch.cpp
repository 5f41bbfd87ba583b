// Counts and counting sort of assignments; row gather and weighted sums for any floating type.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cpu/empty.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/simd.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

// One token: y = base + sum_k w_k x[row_k]; null w means 1, null base means 0.
template <typename T, typename W>
HERO_INLINE void sum_body(const T* base, const T* x, const W* w, const int64_t* row, int64_t k, int64_t d,
                          acc_t<T>* sum, T* y) {
  for (int64_t c = 0; c < d; ++c) sum[c] = base ? load(base[c]) : acc_t<T>(0);
  for (int64_t j = 0; j < k; ++j) {
    if (row[j] < 0) continue;
    const T* in = x + row[j] * d;
    const acc_t<T> weight = w ? static_cast<acc_t<T>>(w[j]) : 1;
    for (int64_t c = 0; c < d; ++c) sum[c] += weight * load(in[c]);
  }
  for (int64_t c = 0; c < d; ++c) store(y[c], sum[c]);
}

// One row: dx = w dy, returns dy . y.
template <typename T>
HERO_INLINE acc_t<T> combine_backward_body(const T* dy, const T* y, acc_t<T> w, int64_t d, T* dx) {
  acc_t<T> dot = 0;
  for (int64_t c = 0; c < d; ++c) {
    dot += load(dy[c]) * load(y[c]);
    store(dx[c], w * load(dy[c]));
  }
  return dot;
}

#define HERO_DISPATCH(T)                                                                                     \
  HERO_SIMD void sum(const T* base, const T* x, const acc_t<T>* w, const int64_t* row, int64_t k, int64_t d, \
                     acc_t<T>* s, T* y) {                                                                    \
    sum_body(base, x, w, row, k, d, s, y);                                                                   \
  }                                                                                                          \
  HERO_SIMD acc_t<T> combine_backward_row(const T* dy, const T* y, acc_t<T> w, int64_t d, T* dx) {           \
    return combine_backward_body(dy, y, w, d, dx);                                                           \
  }
HERO_DISPATCH(bf16)
HERO_DISPATCH(float)
HERO_DISPATCH(double)
#undef HERO_DISPATCH

template <typename T>
at::Tensor sum_typed(const at::Tensor& x, const std::optional<at::Tensor>& weights, const at::Tensor& row,
                     const std::optional<at::Tensor>& base) {
  const int64_t tokens = row.size(0), k = row.size(1), d = x.size(1);
  auto y = empty({tokens, d}, x.scalar_type());
  const auto* w = weights ? weights->const_data_ptr<acc_t<T>>() : nullptr;
  const T *first = base ? base->const_data_ptr<T>() : nullptr, *from = x.const_data_ptr<T>();
  const auto* index = row.const_data_ptr<int64_t>();
  T* to = y.data_ptr<T>();
  parallel_tasks((tokens + kStrip - 1) / kStrip, [&](int64_t i) {
    std::vector<acc_t<T>> s(d);
    for (int64_t t = i * kStrip; t < std::min(tokens, (i + 1) * kStrip); ++t) {
      sum(first ? first + t * d : nullptr, from, w ? w + t * k : nullptr, index + t * k, k, d, s.data(),
          to + t * d);
    }
  });
  return y;
}

template <typename T>
std::tuple<at::Tensor, at::Tensor> combine_backward_typed(const at::Tensor& dy, const at::Tensor& y,
                                                          const at::Tensor& weights, const at::Tensor& row) {
  const int64_t tokens = row.size(0), k = row.size(1), d = y.size(1);
  auto dx = empty({y.size(0), d}, y.scalar_type());
  auto dweights = at::zeros({tokens, k}, weights.options());
  const auto* w = weights.const_data_ptr<acc_t<T>>();
  const auto* index = row.const_data_ptr<int64_t>();
  const T *gradient = dy.const_data_ptr<T>(), *value = y.const_data_ptr<T>();
  auto* dw = dweights.data_ptr<acc_t<T>>();
  T* to = dx.data_ptr<T>();
  parallel_tasks((tokens + kStrip - 1) / kStrip, [&](int64_t i) {
    for (int64_t a = i * kStrip * k; a < std::min(tokens, (i + 1) * kStrip) * k; ++a) {
      if (index[a] < 0) continue;
      dw[a] = combine_backward_row(gradient + a / k * d, value + index[a] * d, w[a], d, to + index[a] * d);
    }
  });
  return {dx, dweights};
}

}  // namespace

at::Tensor count_assignments(const at::Tensor& ids, int64_t experts) {
  auto counts = at::zeros({ids.size(0), experts}, ids.options());
  const auto* id = ids.const_data_ptr<int64_t>();
  auto* count = counts.data_ptr<int64_t>();
  for (int64_t g = 0; g < ids.size(0); ++g, count += experts) {
    for (int64_t i = 0; i < ids.size(1); ++i, ++id) {
      TORCH_CHECK(*id >= -1 && *id < experts, "count_assignments: ids must lie in [-1, ", experts, "), got ",
                  *id);
      if (*id >= 0) ++count[*id];
    }
  }
  return counts;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> plan_assignments(const at::Tensor& ids,
                                                                            int64_t experts) {
  const int64_t tokens = ids.size(0), k = ids.size(1);
  const auto* id = ids.const_data_ptr<int64_t>();
  auto counts = empty({experts}, ids.scalar_type()), offsets = empty({experts + 1}, ids.scalar_type());
  auto* count = counts.data_ptr<int64_t>();
  auto* offset = offsets.data_ptr<int64_t>();
  std::fill_n(count, experts, 0);
  offset[0] = 0;
  for (int64_t i = 0; i < tokens * k; ++i) {
    TORCH_CHECK(id[i] >= -1 && id[i] < experts, "plan: ids must lie in [-1, ", experts, "), got ", id[i]);
    if (id[i] >= 0) ++count[id[i]];
  }
  for (int64_t e = 0; e < experts; ++e) offset[e + 1] = offset[e] + count[e];
  auto token = empty({offset[experts]}, ids.scalar_type()), row = empty({tokens, k}, ids.scalar_type());
  auto *token_of = token.data_ptr<int64_t>(), *row_of = row.data_ptr<int64_t>();
  std::vector<int64_t> next(offset, offset + experts);
  for (int64_t i = 0; i < tokens * k; ++i) {
    row_of[i] = id[i] < 0 ? -1 : next[id[i]]++;
    if (id[i] >= 0) token_of[row_of[i]] = i / k;
  }
  return {counts, offsets, token, row};
}

at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& token) {
  const auto in = x.contiguous();
  const int64_t rows = token.size(0), bytes = in.size(1) * in.element_size();
  auto out = empty({rows, in.size(1)}, in.scalar_type());
  const auto* from = static_cast<const char*>(in.const_data_ptr());
  auto* to = static_cast<char*>(out.data_ptr());
  const auto* index = token.const_data_ptr<int64_t>();
  parallel_tasks((rows + kStrip - 1) / kStrip, [&](int64_t i) {
    for (int64_t r = i * kStrip; r < std::min(rows, (i + 1) * kStrip); ++r) {
      std::memcpy(to + r * bytes, from + index[r] * bytes, bytes);
    }
  });
  return out;
}

at::Tensor sum_rows(const at::Tensor& x, const std::optional<at::Tensor>& weights, const at::Tensor& row,
                    const std::optional<at::Tensor>& base) {
  const bool contiguous = x.is_contiguous() && row.is_contiguous() && (!base || base->is_contiguous());
  const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (contiguous && (!weights || weights->scalar_type() == wide)) {
    if (x.scalar_type() == at::kBFloat16) return sum_typed<bf16>(x, weights, row, base);
    if (x.scalar_type() == at::kFloat) return sum_typed<float>(x, weights, row, base);
    if (x.scalar_type() == at::kDouble) return sum_typed<double>(x, weights, row, base);
  }
  return ops::sum_rows_reference(x, weights, row, base);
}

std::tuple<at::Tensor, at::Tensor> combine_backward(const at::Tensor& dy, const at::Tensor& y,
                                                    const at::Tensor& weights, const at::Tensor& row,
                                                    const at::Tensor& token) {
  const auto wide = y.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (y.is_contiguous() && weights.scalar_type() == wide) {
    if (y.scalar_type() == at::kBFloat16) return combine_backward_typed<bf16>(dy, y, weights, row);
    if (y.scalar_type() == at::kFloat) return combine_backward_typed<float>(dy, y, weights, row);
    if (y.scalar_type() == at::kDouble) return combine_backward_typed<double>(dy, y, weights, row);
  }
  return ops::combine_backward_reference(dy, y, weights, row, token);
}

}  // namespace hero::cpu
