// RMSNorm, several passes over a row in the L1 cache. The weight gradient is summed per block of rows, then
// over blocks in order, so it does not depend on the number of threads.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "ops/cpu/empty.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/simd.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

template <typename T>
HERO_INLINE void forward_body(const T* x, const T* w, acc_t<T> eps, int64_t rows, int64_t d, T* y,
                              acc_t<T>* rstd) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* in = x + r * d;
    acc_t<T> sum = 0;
    for (int64_t i = 0; i < d; ++i) sum += load(in[i]) * load(in[i]);
    const acc_t<T> s = 1 / std::sqrt(sum / static_cast<acc_t<T>>(d) + eps);
    for (int64_t i = 0; i < d; ++i) store(y[r * d + i], load(in[i]) * s * load(w[i]));
    rstd[r] = s;
  }
}

template <typename T>
HERO_INLINE void add_forward_body(const T* x, const T* update, const T* w, acc_t<T> eps, int64_t rows,
                                  int64_t d, T* sum, T* y, acc_t<T>* rstd) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = r * d; i < (r + 1) * d; ++i) store(sum[i], load(x[i]) + load(update[i]));
    forward_body(sum + r * d, w, eps, 1, d, y + r * d, rstd + r);
  }
}

template <bool kMore, typename T>
HERO_INLINE void backward_body(const T* dy, const T* x, const T* w, const acc_t<T>* rstd, const T* dsum,
                               int64_t rows, int64_t d, T* dx, acc_t<T>* dw) {
  for (int64_t r = 0; r < rows; ++r) {
    const T *g = dy + r * d, *in = x + r * d;
    const acc_t<T> s = rstd[r];
    acc_t<T> dot = 0;
    for (int64_t i = 0; i < d; ++i) dot += load(g[i]) * load(w[i]) * load(in[i]);
    const acc_t<T> mean = dot * s / static_cast<acc_t<T>>(d);
    for (int64_t i = 0; i < d; ++i) {
      const acc_t<T> normed = load(in[i]) * s;
      const acc_t<T> own = (load(g[i]) * load(w[i]) - normed * mean) * s;
      if constexpr (kMore) {
        store(dx[r * d + i], own + load(dsum[r * d + i]));
      } else {
        store(dx[r * d + i], own);
      }
      dw[i] += load(g[i]) * normed;
    }
  }
}

#define HERO_RMS_NORM(T)                                                                                 \
  HERO_SIMD void forward_rows(const T* x, const T* w, acc_t<T> eps, int64_t n, int64_t d, T* y,          \
                              acc_t<T>* rstd) {                                                          \
    forward_body(x, w, eps, n, d, y, rstd);                                                              \
  }                                                                                                      \
  HERO_SIMD void add_forward_rows(const T* x, const T* update, const T* w, acc_t<T> eps, int64_t n,      \
                                  int64_t d, T* sum, T* y, acc_t<T>* rstd) {                             \
    add_forward_body(x, update, w, eps, n, d, sum, y, rstd);                                             \
  }                                                                                                      \
  HERO_SIMD void backward_rows(const T* dy, const T* x, const T* w, const acc_t<T>* rstd, const T* dsum, \
                               int64_t n, int64_t d, T* dx, acc_t<T>* dw) {                              \
    if (dsum) return backward_body<true>(dy, x, w, rstd, dsum, n, d, dx, dw);                            \
    backward_body<false>(dy, x, w, rstd, dsum, n, d, dx, dw);                                            \
  }
HERO_RMS_NORM(bf16)
HERO_RMS_NORM(float)
HERO_RMS_NORM(double)
#undef HERO_RMS_NORM

constexpr int64_t kNormStrip = 128;

template <typename T>
std::tuple<at::Tensor, at::Tensor> forward_typed(const at::Tensor& x, const at::Tensor& w, double eps) {
  const int64_t rows = x.size(0), d = x.size(1);
  auto y = empty(x.sizes(), x.scalar_type());
  auto rstd = empty({rows}, c10::CppTypeToScalarType<acc_t<T>>::value);
  const T *in = x.const_data_ptr<T>(), *weight = w.const_data_ptr<T>();
  T* out = y.data_ptr<T>();
  auto* s = rstd.template data_ptr<acc_t<T>>();
  parallel_tasks((rows + kNormStrip - 1) / kNormStrip, [&](int64_t i) {
    const int64_t r = i * kNormStrip;
    forward_rows(in + r * d, weight, static_cast<acc_t<T>>(eps), std::min(kNormStrip, rows - r), d,
                 out + r * d, s + r);
  });
  return {y, rstd};
}

template <typename T>
std::tuple<at::Tensor, at::Tensor, at::Tensor> add_forward_typed(const at::Tensor& x,
                                                                 const at::Tensor& update,
                                                                 const at::Tensor& w, double eps) {
  const int64_t rows = x.size(0), d = x.size(1);
  auto sum = empty(x.sizes(), x.scalar_type()), y = empty(x.sizes(), x.scalar_type());
  auto rstd = empty({rows}, c10::CppTypeToScalarType<acc_t<T>>::value);
  const T *in = x.const_data_ptr<T>(), *more = update.const_data_ptr<T>(), *weight = w.const_data_ptr<T>();
  T *total = sum.data_ptr<T>(), *out = y.data_ptr<T>();
  auto* s = rstd.template data_ptr<acc_t<T>>();
  parallel_tasks((rows + kNormStrip - 1) / kNormStrip, [&](int64_t i) {
    const int64_t r = i * kNormStrip, at = r * d;
    add_forward_rows(in + at, more + at, weight, static_cast<acc_t<T>>(eps), std::min(kNormStrip, rows - r),
                     d, total + at, out + at, s + r);
  });
  return {sum, y, rstd};
}

template <typename T>
std::tuple<at::Tensor, at::Tensor> backward_typed(const at::Tensor& dy, const at::Tensor& x,
                                                  const at::Tensor& w, const at::Tensor& rstd,
                                                  const std::optional<at::Tensor>& dsum) {
  const int64_t rows = x.size(0), d = x.size(1), strips = (rows + kNormStrip - 1) / kNormStrip;
  auto dx = at::empty_like(x);
  auto dw = at::zeros({strips, d}, rstd.options());
  const T *g = dy.const_data_ptr<T>(), *in = x.const_data_ptr<T>(), *weight = w.const_data_ptr<T>();
  const T* more = dsum ? dsum->const_data_ptr<T>() : nullptr;
  const auto* s = rstd.const_data_ptr<acc_t<T>>();
  T* out = dx.data_ptr<T>();
  auto* sums = dw.template data_ptr<acc_t<T>>();
  parallel_tasks(strips, [&](int64_t i) {
    const int64_t r = i * kNormStrip;
    backward_rows(g + r * d, in + r * d, weight, s + r, more ? more + r * d : nullptr,
                  std::min(kNormStrip, rows - r), d, out + r * d, sums + i * d);
  });
  return {dx, dw.sum(0)};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& w, double eps) {
  const auto in = x.contiguous();
  switch (x.scalar_type()) {
    case at::kBFloat16:
      return forward_typed<bf16>(in, w, eps);
    case at::kFloat:
      return forward_typed<float>(in, w, eps);
    case at::kDouble:
      return forward_typed<double>(in, w, eps);
    default:
      return ops::rms_norm_forward_reference(x, w, eps);
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_forward(const at::Tensor& x,
                                                                    const at::Tensor& update,
                                                                    const at::Tensor& w, double eps) {
  const auto in = x.contiguous(), more = update.contiguous();
  switch (x.scalar_type()) {
    case at::kBFloat16:
      return add_forward_typed<bf16>(in, more, w, eps);
    case at::kFloat:
      return add_forward_typed<float>(in, more, w, eps);
    case at::kDouble:
      return add_forward_typed<double>(in, more, w, eps);
    default:
      return ops::add_rms_norm_forward_reference(x, update, w, eps);
  }
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                     const at::Tensor& w, const at::Tensor& rstd,
                                                     const std::optional<at::Tensor>& dsum) {
  const auto in = x.contiguous();
  switch (x.scalar_type()) {
    case at::kBFloat16:
      return backward_typed<bf16>(dy, in, w, rstd, dsum);
    case at::kFloat:
      return backward_typed<float>(dy, in, w, rstd, dsum);
    case at::kDouble:
      return backward_typed<double>(dy, in, w, rstd, dsum);
    default:
      return ops::rms_norm_backward_reference(dy, x, w, rstd, dsum);
  }
}

}  // namespace hero::cpu
