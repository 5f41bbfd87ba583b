// Rotary embedding. Accepts any strides with a contiguous last dimension, writes contiguous [B, S, H, R].
#include <ATen/core/Tensor.h>

#include "ops/cpu/empty.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/simd.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

// The heads of one position.
template <typename T>
HERO_INLINE void rotate_body(const T* x, int64_t stride, const float* cos, const float* sin, float sign,
                             int64_t heads, int64_t half, bool interleave, T* y) {
  for (int64_t h = 0; h < heads; ++h, x += stride, y += 2 * half) {
    if (interleave) {
      for (int64_t i = 0; i < half; ++i) {
        const acc_t<T> a = load(x[2 * i]), b = load(x[2 * i + 1]), c = cos[i], s = sign * sin[i];
        store(y[2 * i], a * c - b * s);
        store(y[2 * i + 1], a * s + b * c);
      }
    } else {
      for (int64_t i = 0; i < half; ++i) {
        const acc_t<T> a = load(x[i]), b = load(x[half + i]), c = cos[i], s = sign * sin[i];
        store(y[i], a * c - b * s);
        store(y[half + i], a * s + b * c);
      }
    }
  }
}

#define HERO_ROPE(T)                                                                                \
  HERO_SIMD void rotate(const T* x, int64_t stride, const float* cos, const float* sin, float sign, \
                        int64_t heads, int64_t half, bool interleave, T* y) {                       \
    rotate_body(x, stride, cos, sin, sign, heads, half, interleave, y);                             \
  }
HERO_ROPE(bf16)
HERO_ROPE(float)
#undef HERO_ROPE

template <typename T>
at::Tensor rope_typed(const at::Tensor& in, const at::Tensor& cos, const at::Tensor& sin, bool interleave,
                      bool inverse) {
  const auto x = in.stride(3) == 1 ? in : in.contiguous();
  const int64_t batch = x.size(0), positions = x.size(1), heads = x.size(2), r = x.size(3);
  auto y = empty({batch, positions, heads, r}, x.scalar_type());
  const T* from = x.const_data_ptr<T>();
  T* to = y.data_ptr<T>();
  const auto *c = cos.const_data_ptr<float>(), *s = sin.const_data_ptr<float>();
  const int64_t strips = (positions + kStrip - 1) / kStrip;
  parallel_tasks(batch * strips, [&](int64_t i) {
    const int64_t b = i / strips, end = std::min(positions, (i % strips + 1) * kStrip);
    for (int64_t p = i % strips * kStrip; p < end; ++p) {
      rotate(from + b * x.stride(0) + p * x.stride(1), x.stride(2), c + p * r / 2, s + p * r / 2,
             inverse ? -1.0f : 1.0f, heads, r / 2, interleave, to + (b * positions + p) * heads * r);
    }
  });
  return y;
}

}  // namespace

at::Tensor rope_turn(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleave,
                     bool inverse) {
  const bool tables = cos.scalar_type() == at::kFloat && cos.is_contiguous() && sin.is_contiguous();
  if (tables && x.scalar_type() == at::kBFloat16) return rope_typed<bf16>(x, cos, sin, interleave, inverse);
  if (tables && x.scalar_type() == at::kFloat) return rope_typed<float>(x, cos, sin, interleave, inverse);
  return ops::rope_reference(x, cos, sin, interleave, inverse);
}

}  // namespace hero::cpu
