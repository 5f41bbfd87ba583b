// Fused AdamW: one pass over values, moments and gradients, which also writes the bf16 weights; and the sum
// of squares. Tensors are split into chunks of fixed size, so sums do not depend on the number of threads.
#include <ATen/core/Tensor.h>

#include <cmath>
#include <vector>

#include "ops/cpu/empty.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/simd.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

constexpr int64_t kChunkSize = 1 << 15;  // elements: small enough to balance the load, large enough to stream

struct Chunk {
  size_t tensor;
  int64_t begin, size;
};

std::vector<Chunk> split_into_chunks(at::TensorList tensors) {
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t n = tensors[i].numel();
    for (int64_t begin = 0; begin < n; begin += kChunkSize)
      chunks.push_back({i, begin, std::min(kChunkSize, n - begin)});
  }
  return chunks;
}

// Coefficients shared by all elements.
template <typename T>
struct Coefficients {
  T decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_sqrt_bias_correction, eps, scale;
};

template <typename T>
HERO_INLINE T adamw_update(T value, T gradient, T& first, T& second, const Coefficients<T>& r) {
  const T g = gradient * r.scale;
  first = r.beta1 * first + r.one_minus_beta1 * g;
  second = r.beta2 * second + r.one_minus_beta2 * g * g;
  return r.decay * value - r.step_size * first / (std::sqrt(second) * r.inv_sqrt_bias_correction + r.eps);
}

HERO_SIMD void update_bf16(float* __restrict value, const float* __restrict gradient, float* __restrict first,
                           float* __restrict second, bf16* __restrict leaf, int64_t n,
                           const Coefficients<float> r) {
  for (int64_t i = 0; i < n; ++i) {
    value[i] = adamw_update(value[i], gradient[i], first[i], second[i], r);
    store(leaf[i], value[i]);
  }
}
HERO_SIMD void update_float(float* __restrict value, const float* __restrict gradient,
                            float* __restrict first, float* __restrict second, int64_t n,
                            const Coefficients<float> r) {
  for (int64_t i = 0; i < n; ++i) value[i] = adamw_update(value[i], gradient[i], first[i], second[i], r);
}
HERO_SIMD void update_double(double* __restrict value, const double* __restrict gradient,
                             double* __restrict first, double* __restrict second, int64_t n,
                             const Coefficients<double> r) {
  for (int64_t i = 0; i < n; ++i) value[i] = adamw_update(value[i], gradient[i], first[i], second[i], r);
}

// Adds runs of fp32 sums in fp64, so that the error does not depend on the number of vector lanes.
HERO_SIMD double square_float(const float* x, int64_t n) {
  constexpr int64_t kRun = 1024;
  double sum = 0;
  for (int64_t first = 0; first < n; first += kRun) {
    const int64_t end = std::min(n, first + kRun);
    float run = 0;
    for (int64_t i = first; i < end; ++i) run += x[i] * x[i];
    sum += run;
  }
  return sum;
}
HERO_SIMD double square_double(const double* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

bool contiguous(at::TensorList tensors, at::ScalarType type) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const auto& t) { return t.is_contiguous() && t.scalar_type() == type; });
}

// Every leaf must be the same tensor as its values, or bf16.
bool is_supported(at::TensorList values, at::TensorList gradients, at::TensorList exp_avg,
                  at::TensorList exp_avg_sq, at::TensorList leaves) {
  const auto type = values[0].scalar_type();
  if (type != at::kFloat && type != at::kDouble) return false;
  for (const auto tensors : {values, gradients, exp_avg, exp_avg_sq}) {
    if (!contiguous(tensors, type)) return false;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const bool rounded =
        type == at::kFloat && leaves[i].scalar_type() == at::kBFloat16 && leaves[i].is_contiguous();
    if (!rounded && !leaves[i].is_same(values[i])) return false;
  }
  return true;
}

}  // namespace

void adamw_step(at::TensorList values, at::TensorList gradients, at::TensorList exp_avg,
                at::TensorList exp_avg_sq, at::TensorList leaves, const at::Tensor& step, double lr,
                double beta1, double beta2, double weight_decay, double eps,
                const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& skip) {
  if (skip || !is_supported(values, gradients, exp_avg, exp_avg_sq, leaves)) {
    return ops::adamw_step_reference(values, gradients, exp_avg, exp_avg_sq, leaves, step, lr, beta1, beta2,
                                     weight_decay, eps, scale, skip);
  }
  const double count = step.item<double>();
  const Coefficients<double> r{.decay = 1 - lr * weight_decay,
                               .beta1 = beta1,
                               .one_minus_beta1 = 1 - beta1,
                               .beta2 = beta2,
                               .one_minus_beta2 = 1 - beta2,
                               .step_size = lr / (1 - std::pow(beta1, count)),
                               .inv_sqrt_bias_correction = 1 / std::sqrt(1 - std::pow(beta2, count)),
                               .eps = eps,
                               .scale = scale ? scale->item<double>() : 1.0};
  const auto f = [](double v) { return static_cast<float>(v); };
  const Coefficients<float> narrow{f(r.decay),
                                   f(r.beta1),
                                   f(r.one_minus_beta1),
                                   f(r.beta2),
                                   f(r.one_minus_beta2),
                                   f(r.step_size),
                                   f(r.inv_sqrt_bias_correction),
                                   f(r.eps),
                                   f(r.scale)};
  const auto chunks = split_into_chunks(values);
  parallel_tasks(static_cast<int64_t>(chunks.size()), [&](int64_t i) {
    const auto [t, begin, n] = chunks[i];
    const auto of = [&]<typename T>(at::TensorList tensors, T) {
      return static_cast<T*>(tensors[t].data_ptr()) + begin;
    };
    if (values[t].scalar_type() == at::kDouble) {
      update_double(of(values, 0.0), of(gradients, 0.0), of(exp_avg, 0.0), of(exp_avg_sq, 0.0), n, r);
    } else if (leaves[t].scalar_type() == at::kBFloat16) {
      update_bf16(of(values, 0.0f), of(gradients, 0.0f), of(exp_avg, 0.0f), of(exp_avg_sq, 0.0f),
                  of(leaves, bf16{}), n, narrow);
    } else {
      update_float(of(values, 0.0f), of(gradients, 0.0f), of(exp_avg, 0.0f), of(exp_avg_sq, 0.0f), n, narrow);
    }
  });
}

at::Tensor sum_of_squares(at::TensorList tensors) {
  const auto type = tensors[0].scalar_type();
  if ((type != at::kFloat && type != at::kDouble) || !contiguous(tensors, type))
    return ops::sum_of_squares_reference(tensors);
  const auto chunks = split_into_chunks(tensors);
  std::vector<double> sums(chunks.size());
  parallel_tasks(static_cast<int64_t>(chunks.size()), [&](int64_t i) {
    const auto [t, begin, n] = chunks[i];
    sums[i] = type == at::kDouble ? square_double(tensors[t].const_data_ptr<double>() + begin, n)
                                  : square_float(tensors[t].const_data_ptr<float>() + begin, n);
  });
  auto total = empty({}, at::kDouble);
  double sum = 0;
  for (const double chunk : sums) sum += chunk;
  *total.data_ptr<double>() = sum;
  return total;
}

}  // namespace hero::cpu
