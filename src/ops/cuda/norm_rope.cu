// RMSNorm of heads and the rotary embedding after it, on CUDA.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/kernels/norm_rope.cuh"
#include "ops/cuda/kernels/rms_norm.cuh"
#include "ops/cuda/launch.h"
#include "ops/plain.h"

namespace hero::ops {
namespace {

using namespace cuda;

constexpr int64_t kWidest = 512;  // that a warp keeps in registers
constexpr int64_t kMostStrips = 512, kLeastStrip = 64;

bool fused(const at::Tensor& x, const at::Tensor& w, const at::Tensor& cos, const at::Tensor& sin) {
  return suits(x.scalar_type()) && w.scalar_type() == x.scalar_type() && x.size(3) <= kWidest &&
         cos.scalar_type() == at::kFloat && sin.scalar_type() == at::kFloat;
}

at::Tensor rows_together(const at::Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); }

// Whether the heads of x, and halves of heads, start where pairs of values can be read at once.
bool suits_pairs(const at::Tensor& x) {
  bool suited =
      x.size(3) % 4 == 0 && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % (2 * x.itemsize()) == 0;
  for (int64_t dim = 0; dim < 3; ++dim) suited = suited && x.stride(dim) % 2 == 0;
  return suited;
}

// f<T, n, parts>() for the type of x, pairs of neighbours or single values, and the parts that cover half a
// head.
template <typename F>
void for_heads(const at::Tensor& x, bool pairs, const F& f) {
  const auto parts = [&]<typename T>() {
    if (!pairs) return f.template operator()<T, 1, kWidest / 2 / kLanes>();
    if (x.size(3) <= 4 * kLanes) return f.template operator()<T, 2, 1>();
    f.template operator()<T, 2, kWidest / 4 / kLanes>();
  };
  for_type(x.scalar_type(), /*vectors=*/false, [&]<typename T, int>() { parts.template operator()<T>(); });
}

// What both directions read; the tensors must outlive the launch.
struct Operands {
  at::Tensor x, w, cos, sin;

  Operands(const at::Tensor& x_, const at::Tensor& w_, const at::Tensor& cos_, const at::Tensor& sin_)
      : x(rows_together(x_)), w(w_.contiguous()), cos(cos_.contiguous()), sin(sin_.contiguous()) {}
  bool pairs() const { return suits_pairs(x) && aligned(w) && aligned(cos) && aligned(sin); }
  template <typename T>
  NormRopeWork<T> work() const {
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

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& w, double eps,
                                           const at::Tensor& cos, const at::Tensor& sin) {
  if (!fused(x, w, cos, sin)) return norm_rope_forward_plain(x, w, eps, cos, sin);
  const c10::cuda::CUDAGuard guard(x.device());
  const Operands in(x, w, cos, sin);
  auto y = at::empty(x.sizes(), x.options());
  auto rstd = at::empty({x.size(0), x.size(1), x.size(2)}, x.options().dtype(at::kFloat));
  if (y.numel() == 0) return {y, rstd};
  for_heads(in.x, in.pairs(), [&]<typename T, int n, int parts>() {
    auto work = in.work<T>();
    work.eps = static_cast<float>(eps);
    work.rstd = rstd.data_ptr<float>();
    work.out = y.data_ptr<T>();
    norm_rope_forward<n, parts>
        <<<blocks(work.rows, kHeadWarps), dim3(kLanes, kHeadWarps), 0, at::cuda::getCurrentCUDAStream()>>>(
            work);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w,
                                            const at::Tensor& rstd, const at::Tensor& cos,
                                            const at::Tensor& sin) {
  if (!fused(x, w, cos, sin)) return norm_rope_backward_plain(dy, x, w, rstd, cos, sin);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = at::cuda::getCurrentCUDAStream();
  const Operands in(x, w, cos, sin);
  const auto gradient = rows_together(dy);
  const int64_t width = x.size(3), rows = x.size(0) * x.size(1) * x.size(2);
  auto dx = at::empty(x.sizes(), x.options());
  if (dx.numel() == 0) return {dx, at::zeros({width}, rstd.options())};
  const int64_t strip = std::max(kLeastStrip, (rows + kMostStrips - 1) / kMostStrips);
  const int64_t strips = (rows + strip - 1) / strip;
  auto partial = at::empty({strips, width}, rstd.options()), dw = at::empty({width}, rstd.options());
  for_heads(in.x, in.pairs() && suits_pairs(gradient), [&]<typename T, int n, int parts>() {
    auto work = in.work<T>();
    work.ld_dy_batch = gradient.stride(0);
    work.ld_dy_position = gradient.stride(1);
    work.ld_dy_head = gradient.stride(2);
    work.dy = gradient.const_data_ptr<T>();
    work.rstd = rstd.data_ptr<float>();
    work.out = dx.data_ptr<T>();
    norm_rope_backward<n, parts>
        <<<blocks(strips, 1), dim3(kLanes, kHeadWarps), 0, stream>>>(work, strip, partial.data_ptr<float>());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  add_strips<<<blocks(width, kLanes), dim3(kLanes, kStripWarps), 0, stream>>>(
      strips, width, partial.const_data_ptr<float>(), dw.data_ptr<float>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {dx, dw};
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) {
  m.impl("norm_rope_forward", forward);
  m.impl("norm_rope_backward", backward);
}

}  // namespace hero::ops
