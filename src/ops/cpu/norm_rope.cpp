// Fused RMSNorm and rotary embedding, one head at a time. Accepts any strides with a contiguous last
// dimension, writes contiguous [B, S, H, R]. The weight gradient is summed per block of positions, then over
// blocks in order.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include "ops/cpu/empty.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/simd.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

constexpr int64_t kMaxWidth = 512;

template <typename T>
HERO_INLINE void forward_body(const T* x, int64_t stride, const T* w, acc_t<T> eps, const acc_t<T>* cos,
                              const acc_t<T>* sin, int64_t heads, int64_t half, T* y, acc_t<T>* rstd) {
  acc_t<T> n[kMaxWidth], rotated[kMaxWidth];
  const int64_t width = 2 * half;
  for (int64_t h = 0; h < heads; ++h, x += stride, y += width) {
    acc_t<T> sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += load(x[i]) * load(x[i]);
    const acc_t<T> s = 1 / std::sqrt(sum / static_cast<acc_t<T>>(width) + eps);
    for (int64_t i = 0; i < width; ++i) n[i] = load(x[i]) * s * load(w[i]);
    for (int64_t i = 0; i < half; ++i) rotated[i] = n[i] * cos[i] - n[half + i] * sin[i];
    for (int64_t i = 0; i < half; ++i) rotated[half + i] = n[i] * sin[i] + n[half + i] * cos[i];
    for (int64_t i = 0; i < width; ++i) store(y[i], rotated[i]);
    rstd[h] = s;
  }
}

template <typename T>
HERO_INLINE void backward_body(const T* dy, int64_t dy_stride, const T* x, int64_t stride, const T* w,
                               const acc_t<T>* rstd, const acc_t<T>* cos, const acc_t<T>* sin, int64_t heads,
                               int64_t half, T* dx, acc_t<T>* dw) {
  acc_t<T> g[kMaxWidth], rotated[kMaxWidth];
  const int64_t width = 2 * half;
  for (int64_t h = 0; h < heads; ++h, dy += dy_stride, x += stride, dx += width) {
    for (int64_t i = 0; i < width; ++i) rotated[i] = load(dy[i]);
    for (int64_t i = 0; i < half; ++i) g[i] = rotated[i] * cos[i] + rotated[half + i] * sin[i];
    for (int64_t i = 0; i < half; ++i) g[half + i] = rotated[half + i] * cos[i] - rotated[i] * sin[i];
    const acc_t<T> s = rstd[h];
    acc_t<T> dot = 0;
    for (int64_t i = 0; i < width; ++i) dot += g[i] * load(w[i]) * load(x[i]);
    const acc_t<T> mean = dot * s / static_cast<acc_t<T>>(width);
    for (int64_t i = 0; i < width; ++i) {
      const acc_t<T> normed = load(x[i]) * s;
      store(dx[i], (g[i] * load(w[i]) - normed * mean) * s);
      dw[i] += g[i] * normed;
    }
  }
}

#define HERO_NORM_ROPE(T)                                                                                 \
  HERO_SIMD void forward_heads(const T* x, int64_t stride, const T* w, acc_t<T> eps, const acc_t<T>* cos, \
                               const acc_t<T>* sin, int64_t heads, int64_t half, T* y, acc_t<T>* rstd) {  \
    forward_body(x, stride, w, eps, cos, sin, heads, half, y, rstd);                                      \
  }                                                                                                       \
  HERO_SIMD void backward_heads(const T* dy, int64_t dy_stride, const T* x, int64_t stride, const T* w,   \
                                const acc_t<T>* rstd, const acc_t<T>* cos, const acc_t<T>* sin,           \
                                int64_t heads, int64_t half, T* dx, acc_t<T>* dw) {                       \
    backward_body(dy, dy_stride, x, stride, w, rstd, cos, sin, heads, half, dx, dw);                      \
  }
HERO_NORM_ROPE(bf16)
HERO_NORM_ROPE(float)
HERO_NORM_ROPE(double)
#undef HERO_NORM_ROPE

// Whether the kernels support it: contiguous rows, tables in the accumulation type.
bool fused(const at::Tensor& x, const at::Tensor& w, const at::Tensor& cos, const at::Tensor& sin) {
  const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto type = x.scalar_type();
  return (type == at::kBFloat16 || type == at::kFloat || type == at::kDouble) && x.stride(3) == 1 &&
         x.size(3) <= kMaxWidth && w.is_contiguous() && w.scalar_type() == type &&
         cos.scalar_type() == wide && sin.scalar_type() == wide && cos.is_contiguous() && sin.is_contiguous();
}

template <typename T>
struct Typed {
  using acc = acc_t<T>;

  static std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& w, double eps,
                                                    const at::Tensor& cos, const at::Tensor& sin) {
    const int64_t positions = x.size(1), heads = x.size(2), width = x.size(3);
    auto y = empty(x.sizes(), x.scalar_type());
    auto rstd = empty({x.size(0), positions, heads}, cos.scalar_type());
    const T *in = x.const_data_ptr<T>(), *weight = w.const_data_ptr<T>();
    const acc *c = cos.const_data_ptr<acc>(), *s = sin.const_data_ptr<acc>();
    T* out = y.data_ptr<T>();
    acc* scale = rstd.template data_ptr<acc>();
    parallel_ranges(x.size(0) * positions, kStrip, [&](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i) {
        const int64_t b = i / positions, p = i % positions;
        forward_heads(in + b * x.stride(0) + p * x.stride(1), x.stride(2), weight, static_cast<acc>(eps),
                      c + p * width / 2, s + p * width / 2, heads, width / 2, out + i * heads * width,
                      scale + i * heads);
      }
    });
    return {y, rstd};
  }

  static std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& grad, const at::Tensor& x,
                                                     const at::Tensor& w, const at::Tensor& rstd,
                                                     const at::Tensor& cos, const at::Tensor& sin) {
    const int64_t positions = x.size(1), heads = x.size(2), width = x.size(3), rows = x.size(0) * positions;
    const auto dy = grad.stride(3) == 1 ? grad : grad.contiguous();
    auto dx = empty(x.sizes(), x.scalar_type());
    auto dw = at::zeros({(rows + kStrip - 1) / kStrip, width}, rstd.options());
    const T *gradient = dy.const_data_ptr<T>(), *in = x.const_data_ptr<T>(), *weight = w.const_data_ptr<T>();
    const acc *scale = rstd.const_data_ptr<acc>(), *c = cos.const_data_ptr<acc>(),
              *s = sin.const_data_ptr<acc>();
    T* out = dx.data_ptr<T>();
    acc* sums = dw.template data_ptr<acc>();
    parallel_ranges(rows, kStrip, [&](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i) {
        const int64_t b = i / positions, p = i % positions;
        backward_heads(gradient + b * dy.stride(0) + p * dy.stride(1), dy.stride(2),
                       in + b * x.stride(0) + p * x.stride(1), x.stride(2), weight, scale + i * heads,
                       c + p * width / 2, s + p * width / 2, heads, width / 2, out + i * heads * width,
                       sums + first / kStrip * width);
      }
    });
    return {dx, dw.sum(0)};
  }
};

}  // namespace

std::tuple<at::Tensor, at::Tensor> norm_rope_forward(const at::Tensor& x, const at::Tensor& w, double eps,
                                                     const at::Tensor& cos, const at::Tensor& sin) {
  if (!fused(x, w, cos, sin)) return ops::norm_rope_forward_reference(x, w, eps, cos, sin);
  if (x.scalar_type() == at::kBFloat16) return Typed<bf16>::forward(x, w, eps, cos, sin);
  if (x.scalar_type() == at::kFloat) return Typed<float>::forward(x, w, eps, cos, sin);
  return Typed<double>::forward(x, w, eps, cos, sin);
}

std::tuple<at::Tensor, at::Tensor> norm_rope_backward(const at::Tensor& dy, const at::Tensor& x,
                                                      const at::Tensor& w, const at::Tensor& rstd,
                                                      const at::Tensor& cos, const at::Tensor& sin) {
  if (!fused(x, w, cos, sin)) return ops::norm_rope_backward_reference(dy, x, w, rstd, cos, sin);
  if (x.scalar_type() == at::kBFloat16) return Typed<bf16>::backward(dy, x, w, rstd, cos, sin);
  if (x.scalar_type() == at::kFloat) return Typed<float>::backward(dy, x, w, rstd, cos, sin);
  return Typed<double>::backward(dy, x, w, rstd, cos, sin);
}

}  // namespace hero::cpu
