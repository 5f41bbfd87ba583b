// Fused RMSNorm and rotary embedding of heads on CUDA.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/kernels/norm_rope.cuh"
#include "ops/cuda/kernels/rms_norm.cuh"
#include "ops/cuda/launch.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

using namespace cuda;

constexpr int64_t kMaxWidth = 512;  // elements that a warp keeps in registers
constexpr int64_t kMaxRopeStrips = 512, kMinRopeStrip = 64;

bool fused(const at::Tensor& x, const at::Tensor& w, const at::Tensor& cos, const at::Tensor& sin) {
  return is_supported(x.scalar_type()) && w.scalar_type() == x.scalar_type() && x.size(3) <= kMaxWidth &&
         cos.scalar_type() == at::kFloat && sin.scalar_type() == at::kFloat;
}

at::Tensor contiguous_rows(const at::Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); }

// Whether heads and half-heads of x are aligned for pairs of elements.
bool can_vectorize_pairs(const at::Tensor& x) {
  bool suited =
      x.size(3) % 4 == 0 && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % (2 * x.itemsize()) == 0;
  for (int64_t dim = 0; dim < 3; ++dim) suited = suited && x.stride(dim) % 2 == 0;
  return suited;
}

// Calls f<T, n, parts>() for the type of x, vector width n (2 if `pairs`), and the vectors per lane that
// cover half a head.
template <typename F>
void dispatch_heads(const at::Tensor& x, bool pairs, const F& f) {
  const auto parts = [&]<typename T>() {
    if (!pairs) return f.template operator()<T, 1, kMaxWidth / 2 / kWarpSize>();
    if (x.size(3) <= 4 * kWarpSize) return f.template operator()<T, 2, 1>();
    f.template operator()<T, 2, kMaxWidth / 4 / kWarpSize>();
  };
  dispatch_type(x.scalar_type(), /*vectors=*/false,
                [&]<typename T, int>() { parts.template operator()<T>(); });
}

// Operands of forward and backward; must outlive the launch.
struct Operands {
  at::Tensor x, w, cos, sin;

  Operands(const at::Tensor& x_, const at::Tensor& w_, const at::Tensor& cos_, const at::Tensor& sin_)
      : x(contiguous_rows(x_)), w(w_.contiguous()), cos(cos_.contiguous()), sin(sin_.contiguous()) {}
  bool pairs() const { return can_vectorize_pairs(x) && aligned(w) && aligned(cos) && aligned(sin); }
  template <typename T>
  NormRopeParams<T> params() const {
    return {.rows = x.size(0) * x.size(1) * x.size(2),
            .positions = x.size(1),
            .heads = x.size(2),
            .half = x.size(3) / 2,
            .ld_batch = x.stride(0),
            .ld_position = x.stride(1),
            .ld_head = x.stride(2),
            .x = x.const_data_ptr<T>(),
            .w = w.const_data_ptr<T>(),
            .cos = cos.const_data_ptr<float>(),
            .sin = sin.const_data_ptr<float>()};
  }
};

std::tuple<at::Tensor, at::Tensor> cuda_norm_rope_forward(const at::Tensor& x, const at::Tensor& w,
                                                          double eps, const at::Tensor& cos,
                                                          const at::Tensor& sin) {
  if (!fused(x, w, cos, sin)) return norm_rope_forward_reference(x, w, eps, cos, sin);
  const c10::cuda::CUDAGuard guard(x.device());
  const Operands in(x, w, cos, sin);
  auto y = at::empty(x.sizes(), x.options());
  auto rstd = at::empty({x.size(0), x.size(1), x.size(2)}, x.options().dtype(at::kFloat));
  if (y.numel() == 0) return {y, rstd};
  dispatch_heads(in.x, in.pairs(), [&]<typename T, int n, int parts>() {
    auto params = in.params<T>();
    params.eps = static_cast<float>(eps);
    params.rstd = rstd.data_ptr<float>();
    params.out = y.data_ptr<T>();
    norm_rope_forward<n, parts><<<blocks(params.rows, kHeadWarps), dim3(kWarpSize, kHeadWarps), 0,
                                  at::cuda::getCurrentCUDAStream()>>>(params);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor> cuda_norm_rope_backward(const at::Tensor& dy, const at::Tensor& x,
                                                           const at::Tensor& w, const at::Tensor& rstd,
                                                           const at::Tensor& cos, const at::Tensor& sin) {
  if (!fused(x, w, cos, sin)) return norm_rope_backward_reference(dy, x, w, rstd, cos, sin);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = at::cuda::getCurrentCUDAStream();
  const Operands in(x, w, cos, sin);
  const auto gradient = contiguous_rows(dy);
  const int64_t width = x.size(3), rows = x.size(0) * x.size(1) * x.size(2);
  auto dx = at::empty(x.sizes(), x.options());
  if (dx.numel() == 0) return {dx, at::zeros({width}, rstd.options())};
  const int64_t strip = std::max(kMinRopeStrip, (rows + kMaxRopeStrips - 1) / kMaxRopeStrips);
  const int64_t strips = (rows + strip - 1) / strip;
  auto partial = at::empty({strips, width}, rstd.options()), dw = at::empty({width}, rstd.options());
  dispatch_heads(in.x, in.pairs() && can_vectorize_pairs(gradient), [&]<typename T, int n, int parts>() {
    auto params = in.params<T>();
    params.ld_dy_batch = gradient.stride(0);
    params.ld_dy_position = gradient.stride(1);
    params.ld_dy_head = gradient.stride(2);
    params.dy = gradient.const_data_ptr<T>();
    params.rstd = rstd.data_ptr<float>();
    params.out = dx.data_ptr<T>();
    norm_rope_backward<n, parts><<<blocks(strips, 1), dim3(kWarpSize, kHeadWarps), 0, stream>>>(
        params, strip, partial.data_ptr<float>());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  add_strips<<<blocks(width, kWarpSize), dim3(kWarpSize, kStripWarps), 0, stream>>>(
      strips, width, partial.const_data_ptr<float>(), dw.data_ptr<float>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {dx, dw};
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) {
  m.impl("norm_rope_forward", cuda_norm_rope_forward);
  m.impl("norm_rope_backward", cuda_norm_rope_backward);
}

}  // namespace hero::ops
