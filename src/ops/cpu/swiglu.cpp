#include "ops/cpu/swiglu.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <vector>

#include "ops/cpu/empty.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/simd.h"
#include "ops/reference.h"

namespace hero::cpu {

namespace {

template <typename T>
HERO_INLINE void forward_rows_of(const T* gate_up, int64_t rows, int64_t f, T* h, int64_t ld_h) {
  for (int64_t r = 0; r < rows; ++r) {
    const T *g = gate_up + r * 2 * f, *u = g + f;
    for (int64_t i = 0; i < f; ++i) {
      const float gate = load(g[i]);
      store(h[r * ld_h + i], gate / (1.0f + exp_fast(-gate)) * load(u[i]));
    }
  }
}

}  // namespace

HERO_SIMD void swiglu_rows(const bf16* gate_up, int64_t rows, int64_t f, bf16* h, int64_t ld_h) {
  forward_rows_of(gate_up, rows, f, h, ld_h);
}

HERO_SIMD void swiglu_rows(const float* gate_up, int64_t rows, int64_t f, float* h, int64_t ld_h) {
  forward_rows_of(gate_up, rows, f, h, ld_h);
}

HERO_SIMD void swiglu_backward_rows(const float* dh, const bf16* gate_up, int64_t rows, int64_t f,
                                    bf16* d_gate_up, bf16* h) {
  for (int64_t r = 0; r < rows; ++r) {
    const bf16 *g = gate_up + r * 2 * f, *u = g + f;
    bf16 *dg = d_gate_up + r * 2 * f, *du = dg + f;
    for (int64_t i = 0; i < f; ++i) {
      const float gate = load(g[i]), up = load(u[i]), s = 1.0f / (1.0f + exp_fast(-gate)), silu = gate * s,
                  d = dh[r * f + i];
      store(dg[i], d * up * (s + silu * (1.0f - s)));
      store(du[i], d * silu);
    }
    if (h) {
      for (int64_t i = 0; i < f; ++i) {
        const float gate = load(g[i]);
        store(h[r * f + i], gate / (1.0f + exp_fast(-gate)) * load(u[i]));
      }
    }
  }
}

HERO_SIMD static void widen(const bf16* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = load(in[i]);
}

at::Tensor swiglu_forward(const at::Tensor& gate_up) {
  if (gate_up.scalar_type() != at::kBFloat16) return ops::swiglu_forward_reference(gate_up);
  const auto in = gate_up.contiguous();
  auto shape = in.sizes().vec();
  const int64_t f = shape.back() /= 2, rows = f ? in.numel() / (2 * f) : 0;
  auto h = empty(shape, in.scalar_type());
  parallel_tasks((rows + kStrip - 1) / kStrip, [&](int64_t i) {
    const int64_t r = i * kStrip;
    swiglu_rows(in.const_data_ptr<bf16>() + r * 2 * f, std::min(kStrip, rows - r), f,
                h.data_ptr<bf16>() + r * f, f);
  });
  return h;
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  if (gate_up.scalar_type() != at::kBFloat16) return ops::swiglu_backward_reference(dy, gate_up);
  const auto in = gate_up.contiguous(), grad = dy.contiguous();
  const int64_t f = in.size(-1) / 2, rows = f ? in.numel() / (2 * f) : 0;
  auto out = at::empty_like(in);
  parallel_tasks((rows + kStrip - 1) / kStrip, [&](int64_t i) {
    const int64_t r = i * kStrip, count = std::min(kStrip, rows - r);
    std::vector<float> dh(count * f);
    widen(grad.const_data_ptr<bf16>() + r * f, count * f, dh.data());
    swiglu_backward_rows(dh.data(), in.const_data_ptr<bf16>() + r * 2 * f, count, f,
                         out.data_ptr<bf16>() + r * 2 * f, nullptr);
  });
  return out;
}

}  // namespace hero::cpu
