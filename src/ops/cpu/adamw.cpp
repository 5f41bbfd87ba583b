// AdamW in one pass over values, moments and gradients, which writes the bf16 weights beside the fp32 ones;
// and the sum of squares. Tensors are cut into pieces of one size whatever the number of threads, so that no
// sum depends on it.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <vector>

#include "ops/cpu/gemm.h"
#include "ops/cpu/simd.h"
#include "ops/plain.h"

namespace hero::ops {
namespace {

using cpu::bf16;

constexpr int64_t kPiece = 1 << 15;  // elements: small enough to share out evenly, large enough to stream

struct Piece {
  size_t tensor;
  int64_t begin, size;
};

std::vector<Piece> pieces_of(at::TensorList tensors) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t n = tensors[i].numel();
    for (int64_t begin = 0; begin < n; begin += kPiece)
      pieces.push_back({i, begin, std::min(kPiece, n - begin)});
  }
  return pieces;
}

// What is the same for all elements.
template <typename T>
struct Rates {
  T kept, beta1, one_beta1, beta2, one_beta2, step_size, root_correction, eps, scale;
};

template <typename T>
HERO_INLINE T updated(T value, T gradient, T& first, T& second, const Rates<T>& r) {
  const T g = gradient * r.scale;
  first = r.beta1 * first + r.one_beta1 * g;
  second = r.beta2 * second + r.one_beta2 * g * g;
  return r.kept * value - r.step_size * first / (std::sqrt(second) * r.root_correction + r.eps);
}

HERO_SIMD void update_rounded(float* __restrict value, const float* __restrict gradient,
                              float* __restrict first, float* __restrict second, bf16* __restrict leaf,
                              int64_t n, const Rates<float> r) {
  for (int64_t i = 0; i < n; ++i) {
    value[i] = updated(value[i], gradient[i], first[i], second[i], r);
    cpu::store(leaf[i], value[i]);
  }
}
HERO_SIMD void update_float(float* __restrict value, const float* __restrict gradient,
                            float* __restrict first, float* __restrict second, int64_t n,
                            const Rates<float> r) {
  for (int64_t i = 0; i < n; ++i) value[i] = updated(value[i], gradient[i], first[i], second[i], r);
}
HERO_SIMD void update_double(double* __restrict value, const double* __restrict gradient,
                             double* __restrict first, double* __restrict second, int64_t n,
                             const Rates<double> r) {
  for (int64_t i = 0; i < n; ++i) value[i] = updated(value[i], gradient[i], first[i], second[i], r);
}

HERO_SIMD float square_float(const float* x, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
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

// A leaf is its values, or bf16.
bool suits(at::TensorList values, at::TensorList gradients, at::TensorList exp_avg, at::TensorList exp_avg_sq,
           at::TensorList leaves) {
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

void adamw_step(at::TensorList values, at::TensorList gradients, at::TensorList exp_avg,
                at::TensorList exp_avg_sq, at::TensorList leaves, const at::Tensor& step, double lr,
                double beta1, double beta2, double weight_decay, double eps,
                const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& skip) {
  if (skip || !suits(values, gradients, exp_avg, exp_avg_sq, leaves)) {
    return adamw_step_plain(values, gradients, exp_avg, exp_avg_sq, leaves, step, lr, beta1, beta2,
                            weight_decay, eps, scale, skip);
  }
  const double count = step.item<double>();
  const Rates<double> r{.kept = 1 - lr * weight_decay,
                        .beta1 = beta1,
                        .one_beta1 = 1 - beta1,
                        .beta2 = beta2,
                        .one_beta2 = 1 - beta2,
                        .step_size = lr / (1 - std::pow(beta1, count)),
                        .root_correction = 1 / std::sqrt(1 - std::pow(beta2, count)),
                        .eps = eps,
                        .scale = scale ? scale->item<double>() : 1.0};
  const auto f = [](double v) { return static_cast<float>(v); };
  const Rates<float> narrow{f(r.kept),      f(r.beta1),           f(r.one_beta1), f(r.beta2), f(r.one_beta2),
                            f(r.step_size), f(r.root_correction), f(r.eps),       f(r.scale)};
  const auto pieces = pieces_of(values);
  cpu::parallel_tasks(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    const auto [t, begin, n] = pieces[i];
    const auto of = [&]<typename T>(at::TensorList tensors, T) {
      return static_cast<T*>(tensors[t].data_ptr()) + begin;
    };
    if (values[t].scalar_type() == at::kDouble) {
      update_double(of(values, 0.0), of(gradients, 0.0), of(exp_avg, 0.0), of(exp_avg_sq, 0.0), n, r);
    } else if (leaves[t].scalar_type() == at::kBFloat16) {
      update_rounded(of(values, 0.0f), of(gradients, 0.0f), of(exp_avg, 0.0f), of(exp_avg_sq, 0.0f),
                     of(leaves, bf16{}), n, narrow);
    } else {
      update_float(of(values, 0.0f), of(gradients, 0.0f), of(exp_avg, 0.0f), of(exp_avg_sq, 0.0f), n, narrow);
    }
  });
}

at::Tensor sum_of_squares(at::TensorList tensors) {
  const auto type = tensors[0].scalar_type();
  if ((type != at::kFloat && type != at::kDouble) || !contiguous(tensors, type))
    return sum_of_squares_plain(tensors);
  const auto pieces = pieces_of(tensors);
  std::vector<double> sums(pieces.size());
  cpu::parallel_tasks(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    const auto [t, begin, n] = pieces[i];
    sums[i] = type == at::kDouble ? square_double(tensors[t].const_data_ptr<double>() + begin, n)
                                  : square_float(tensors[t].const_data_ptr<float>() + begin, n);
  });
  auto total = at::empty({}, tensors[0].options().dtype(at::kDouble));
  double sum = 0;
  for (const double piece : sums) sum += piece;
  *total.data_ptr<double>() = sum;
  return total;
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CPU, m) {
  m.impl("sum_of_squares", sum_of_squares);
  m.impl("adamw_step", adamw_step);
}

}  // namespace hero::ops
