// Top-k routing row by row: one pass over a row maintains a sorted list of the best.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <vector>

#include "ops/cpu/empty.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

// Sorted list of the `capacity` best inserted elements; ties go to the earlier. Ids are distinct for any
// values, including NaN.
template <typename T>
class TopK {
 public:
  explicit TopK(int64_t capacity) : capacity_(capacity), values_(capacity), ids_(capacity) {}
  void clear() { size_ = 0; }
  void insert(T value, int64_t id) {
    if (size_ == capacity_) {
      if (!(value > values_[capacity_ - 1])) return;
      --size_;
    }
    int64_t place = size_++;
    for (; place > 0 && value > values_[place - 1]; --place) {
      values_[place] = values_[place - 1];
      ids_[place] = ids_[place - 1];
    }
    values_[place] = value;
    ids_[place] = id;
  }
  int64_t size() const { return size_; }
  T value(int64_t place) const { return values_[place]; }
  int64_t id(int64_t place) const { return ids_[place]; }

 private:
  int64_t capacity_, size_ = 0;
  std::vector<T> values_;
  std::vector<int64_t> ids_;
};

// Calls f(first, end) for blocks of rows.
template <typename F>
void for_strips(int64_t rows, const F& f) {
  parallel_tasks((rows + kStrip - 1) / kStrip,
                 [&](int64_t i) { f(i * kStrip, std::min(rows, (i + 1) * kStrip)); });
}

template <typename T>
at::Tensor top_typed(const at::Tensor& scores, const float* bias, int64_t k, int64_t groups, int64_t kept) {
  const int64_t rows = scores.size(0), experts = scores.size(1), per_group = experts / groups;
  auto ids = empty({rows, k}, at::kLong);
  const T* score = scores.const_data_ptr<T>();
  auto* const chosen = ids.mutable_data_ptr<int64_t>();
  for_strips(rows, [&](int64_t first, int64_t end) {
    TopK<T> best(k), best_groups(kept), two(2);
    std::vector<char> group_eligible(groups, 1);
    for (int64_t r = first; r < end; ++r) {
      const T* s = score + r * experts;
      const auto eligible = [&](int64_t e) { return bias ? s[e] + static_cast<T>(bias[e]) : s[e]; };
      if (groups > 1) {
        best_groups.clear();
        for (int64_t g = 0; g < groups; ++g) {
          two.clear();
          for (int64_t e = g * per_group; e < (g + 1) * per_group; ++e) two.insert(eligible(e), e);
          best_groups.insert(two.size() == 2 ? two.value(0) + two.value(1) : two.value(0), g);
        }
        group_eligible.assign(groups, 0);
        for (int64_t i = 0; i < kept; ++i) group_eligible[best_groups.id(i)] = 1;
      }
      best.clear();
      for (int64_t g = 0; g < groups; ++g) {
        if (!group_eligible[g]) continue;
        for (int64_t e = g * per_group; e < (g + 1) * per_group; ++e) best.insert(eligible(e), e);
      }
      for (int64_t i = 0; i < k; ++i) chosen[r * k + i] = best.id(i);
    }
  });
  return ids;
}

int64_t checked_id(int64_t id, int64_t experts) {
  TORCH_CHECK(id >= 0 && id < experts, "expert_weights: ids must lie in [0, ", experts, "), got ", id);
  return id;
}

template <typename T>
at::Tensor weights_typed(const at::Tensor& scores, const at::Tensor& ids, bool normalize, double eps,
                         double factor) {
  const int64_t rows = scores.size(0), experts = scores.size(1), k = ids.size(1);
  auto weights = empty({rows, k}, scores.scalar_type());
  const T* score = scores.const_data_ptr<T>();
  const auto* chosen = ids.const_data_ptr<int64_t>();
  T* weight = weights.template mutable_data_ptr<T>();
  for_strips(rows, [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) {
      const T* s = score + r * experts;
      const int64_t* id = chosen + r * k;
      T* w = weight + r * k;
      T sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += w[i] = s[checked_id(id[i], experts)];
      // Division, not multiplication by a reciprocal: with k = 1 all weights are then bitwise equal, so
      // rounding errors do not decide which assignments exceed the capacity.
      const T whole = normalize ? sum + static_cast<T>(eps) : 1;
      for (int64_t i = 0; i < k; ++i) w[i] = w[i] / whole * static_cast<T>(factor);
    }
  });
  return weights;
}

template <typename T>
at::Tensor weights_backward_typed(const at::Tensor& dweights, const at::Tensor& scores, const at::Tensor& ids,
                                  bool normalize, double eps, double factor) {
  const int64_t rows = scores.size(0), experts = scores.size(1), k = ids.size(1);
  auto dscores = at::zeros({rows, experts}, scores.options());
  const T *score = scores.const_data_ptr<T>(), *dweight = dweights.const_data_ptr<T>();
  const auto* chosen = ids.const_data_ptr<int64_t>();
  T* dscore = dscores.template mutable_data_ptr<T>();
  for_strips(rows, [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) {
      const T *s = score + r * experts, *dw = dweight + r * k;
      const int64_t* id = chosen + r * k;
      T* ds = dscore + r * experts;
      T sum = 0, dot = 0;
      for (int64_t i = 0; normalize && i < k; ++i) {
        sum += s[id[i]];
        dot += dw[i] * s[id[i]];
      }
      const T whole = normalize ? sum + static_cast<T>(eps) : 1, mean = dot / whole;
      for (int64_t i = 0; i < k; ++i) ds[id[i]] = (dw[i] - mean) * static_cast<T>(factor) / whole;
    }
  });
  return dscores;
}

}  // namespace

at::Tensor top_experts(const at::Tensor& scores, const std::optional<at::Tensor>& bias, int64_t k,
                       int64_t groups, int64_t kept_groups) {
  const bool fits = !bias || (bias->scalar_type() == at::kFloat && bias->is_contiguous());
  const auto* offsets = fits && bias ? bias->const_data_ptr<float>() : nullptr;
  if (fits && scores.scalar_type() == at::kFloat)
    return top_typed<float>(scores, offsets, k, groups, kept_groups);
  if (fits && scores.scalar_type() == at::kDouble)
    return top_typed<double>(scores, offsets, k, groups, kept_groups);
  return ops::top_experts_reference(scores, bias, k, groups, kept_groups);
}

at::Tensor expert_weights(const at::Tensor& scores, const at::Tensor& ids, bool normalize, double eps,
                          double factor) {
  if (scores.scalar_type() == at::kFloat) return weights_typed<float>(scores, ids, normalize, eps, factor);
  if (scores.scalar_type() == at::kDouble) return weights_typed<double>(scores, ids, normalize, eps, factor);
  return ops::expert_weights_reference(scores, ids, normalize, eps, factor);
}

at::Tensor expert_weights_backward(const at::Tensor& dweights, const at::Tensor& scores,
                                   const at::Tensor& ids, bool normalize, double eps, double factor) {
  if (scores.scalar_type() == at::kFloat && dweights.scalar_type() == at::kFloat)
    return weights_backward_typed<float>(dweights, scores, ids, normalize, eps, factor);
  if (scores.scalar_type() == at::kDouble && dweights.scalar_type() == at::kDouble)
    return weights_backward_typed<double>(dweights, scores, ids, normalize, eps, factor);
  return ops::expert_weights_backward_reference(dweights, scores, ids, normalize, eps, factor);
}

}  // namespace hero::cpu
