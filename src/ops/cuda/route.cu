// Router on CUDA: cuBLAS GEMMs with fp32 output, then one kernel for everything else. cuBLAS reads the
// history and both column ranges of W in place and writes both column ranges of dW.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include "ops/cuda/kernels/route.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/mm_fp32.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

using namespace cuda;

const dim3 kRouteBlock(kWarpSize, kRouteWarps);

bool fused(const at::Tensor& x, const std::optional<at::Tensor>& history,
           const std::optional<at::Tensor>& slot) {
  const auto type = x.scalar_type();
  return is_supported(type) && x.is_contiguous() && x.size(0) > 0 &&
         (!history || history->scalar_type() == type) &&
         (!slot || (slot->scalar_type() == type && slot->stride(1) == 1));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cuda_route_forward(
    const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& history,
    const std::optional<at::Tensor>& sumsq, double depth_factor, double eps, bool scale,
    const std::optional<at::Tensor>& slot, const std::optional<at::Tensor>& slot_sumsq) {
  if (!fused(x, history, slot))
    return route_forward_reference(x, w, history, sumsq, depth_factor, eps, scale, slot, slot_sumsq);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t rows = x.size(0), d = x.size(1), e = w.size(0);
  auto logits = mm_fp32(x, w.slice(1, 0, d).t());
  const auto residual = history ? mm_fp32(*history, w.slice(1, d).t()) : at::Tensor();
  const auto squares = history ? sumsq->to(at::kFloat) : at::Tensor();
  TORCH_INTERNAL_ASSERT(!history || squares.size(1) == 1 || squares.stride(1) == 1);
  auto probs = at::empty_like(logits), stats = at::empty({rows, kRouteStats}, logits.options());
  dispatch_type(x.scalar_type(), can_vectorize(x, d), [&]<typename T, int n>() {
    const RouteParams<T> params{.rows = rows,
                                .d = d,
                                .experts = e,
                                .visible = history ? history->size(1) / e : 0,
                                .x = x.const_data_ptr<T>(),
                                .logits = logits.data_ptr<float>(),
                                .residual = history ? residual.const_data_ptr<float>() : nullptr,
                                .sumsq = history ? squares.const_data_ptr<float>() : nullptr,
                                .ld_sumsq = history ? squares.stride(0) : 0,
                                .depth_factor = static_cast<float>(depth_factor),
                                .eps = static_cast<float>(eps),
                                .scale = scale,
                                .probs = probs.data_ptr<float>(),
                                .stats = stats.data_ptr<float>(),
                                .slot = slot ? slot->data_ptr<T>() : nullptr,
                                .ld_slot = slot ? slot->stride(0) : 0,
                                .slot_sumsq = slot ? slot_sumsq->data_ptr<float>() : nullptr,
                                .ld_slot_sumsq = slot ? slot_sumsq->stride(0) : 0};
    route_rows<n><<<blocks(rows, kRouteWarps), kRouteBlock, 0, at::cuda::getCurrentCUDAStream()>>>(params);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {logits, probs, stats};
}

std::tuple<at::Tensor, at::Tensor> cuda_route_backward_input(
    const at::Tensor& dlogits, const at::Tensor& dprobs, const at::Tensor& probs, const at::Tensor& x,
    const at::Tensor& w, const std::optional<at::Tensor>& history, const at::Tensor& stats) {
  if (!fused(x, history, std::nullopt))
    return route_backward_input_reference(dlogits, dprobs, probs, x, w, history, stats);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t rows = x.size(0), d = x.size(1), e = w.size(0);
  const auto dl = dlogits.contiguous(), dp = dprobs.contiguous();
  auto dz = at::empty({history ? 2 : 1, rows, e}, x.options());
  dispatch_type(x.scalar_type(), /*vectors=*/false, [&]<typename T, int n>() {
    logit_gradient<<<blocks(rows, kRouteWarps), kRouteBlock, 0, at::cuda::getCurrentCUDAStream()>>>(
        rows, e, dl.const_data_ptr<float>(), dp.const_data_ptr<float>(), probs.const_data_ptr<float>(),
        stats.const_data_ptr<float>(), dz.data_ptr<T>(), history ? dz.data_ptr<T>() + rows * e : nullptr);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {at::mm(dz[0], w.slice(1, 0, d)), dz};
}

at::Tensor cuda_route_backward_weight(const at::Tensor& dz, const at::Tensor& x,
                                      const std::optional<at::Tensor>& history) {
  if (!fused(x, history, std::nullopt)) return route_backward_weight_reference(dz, x, history);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t d = x.size(1), seen = history ? history->size(1) : 0;
  auto dw = at::empty({dz.size(2), d + seen}, x.options().dtype(at::kFloat));
  mm_out_fp32(dw.slice(1, 0, d), dz[0].t(), x);
  if (history) mm_out_fp32(dw.slice(1, d), dz[1].t(), *history);
  return dw;
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) {
  m.impl("route_forward", cuda_route_forward);
  m.impl("route_backward_input", cuda_route_backward_input);
  m.impl("route_backward_weight", cuda_route_backward_weight);
}

}  // namespace hero::ops
