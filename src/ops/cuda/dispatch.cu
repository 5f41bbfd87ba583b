// Counts, plan, permute and combine on CUDA without host synchronization: the plan always has T*K rows, and
// rows from offsets[E] on are padding (see Plan in ops.h). With more than kMaxExperts experts the reference
// computes the plan, which synchronizes.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "ops/cuda/kernels/dispatch.cuh"
#include "ops/cuda/launch.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

using namespace cuda;

constexpr int64_t kCountThreads = 256;

const dim3 kRowBlock(kWarpSize, kRowWarps);

at::Tensor count_assignments(const at::Tensor& ids, int64_t experts) {
  const c10::cuda::CUDAGuard guard(ids.device());
  auto counts = at::zeros({ids.size(0), experts}, ids.options());
  if (ids.numel() == 0) return counts;
  count_ids<<<blocks(ids.numel(), kCountThreads), kCountThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
      ids.numel(), ids.size(1), experts, ids.const_data_ptr<int64_t>(),
      reinterpret_cast<unsigned long long*>(counts.data_ptr<int64_t>()));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return counts;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> plan(const at::Tensor& ids, int64_t experts) {
  if (experts > kMaxExperts) return plan_reference(ids, experts);
  const c10::cuda::CUDAGuard guard(ids.device());
  const auto stream = at::cuda::getCurrentCUDAStream();
  const int64_t assignments = ids.numel(), chunks = (assignments + kChunk - 1) / kChunk;
  auto counts = at::empty({experts}, ids.options()), offsets = at::empty({experts + 1}, ids.options());
  auto token = at::empty({assignments}, ids.options()), row = at::empty(ids.sizes(), ids.options());
  const auto ranks = at::empty({assignments}, ids.options().dtype(at::kInt));
  const auto before = at::empty({experts, chunks}, ids.options());
  const PlanParams params{.assignments = assignments,
                          .k = ids.size(1),
                          .experts = experts,
                          .chunks = chunks,
                          .ids = ids.const_data_ptr<int64_t>(),
                          .ranks = ranks.data_ptr<int>(),
                          .before = before.data_ptr<int64_t>(),
                          .counts = counts.data_ptr<int64_t>(),
                          .offsets = offsets.data_ptr<int64_t>(),
                          .token = token.data_ptr<int64_t>(),
                          .row = row.data_ptr<int64_t>()};
  if (chunks) {
    rank_in_chunks<<<blocks(chunks, kPlanWarps), dim3(kWarpSize, kPlanWarps), 0, stream>>>(params);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
  scan_chunks<<<1, dim3(kWarpSize, kScanWarps), 0, stream>>>(params);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  if (chunks) {
    place_assignments<<<blocks(assignments, 256), 256, 0, stream>>>(params);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
  return {counts, offsets, token, row};
}

template <typename Unit>
void gather_units(const at::Tensor& x, const at::Tensor& token, const at::Tensor& out, int64_t bytes) {
  gather<<<blocks(token.size(0), kRowWarps), kRowBlock, 0, at::cuda::getCurrentCUDAStream()>>>(
      token.size(0), bytes / static_cast<int64_t>(sizeof(Unit)), static_cast<const Unit*>(x.const_data_ptr()),
      token.const_data_ptr<int64_t>(), static_cast<Unit*>(out.data_ptr()));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& token) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto in = x.contiguous();
  auto out = at::empty({token.size(0), in.size(1)}, in.options());
  if (out.numel() == 0) return out;
  const auto bytes = in.size(1) * static_cast<int64_t>(in.element_size());
  if (can_vectorize(in, in.size(1))) {
    gather_units<uint4>(in, token, out, bytes);
  } else if (in.element_size() == 2) {
    gather_units<uint16_t>(in, token, out, bytes);
  } else {
    gather_units<uint32_t>(in, token, out, bytes);
  }
  return out;
}

at::Tensor cuda_sum_rows(const at::Tensor& x, const std::optional<at::Tensor>& weights, const at::Tensor& row,
                         const std::optional<at::Tensor>& base) {
  if (!is_supported(x.scalar_type()) || (weights && weights->scalar_type() != at::kFloat))
    return sum_rows_reference(x, weights, row, base);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto in = x.contiguous(), index = row.contiguous();
  const auto factors = weights ? weights->contiguous() : at::Tensor();
  const auto first = base ? base->contiguous() : at::Tensor();
  const int64_t tokens = row.size(0), d = x.size(1);
  auto y = at::empty({tokens, d}, x.options());
  if (y.numel() == 0) return y;
  dispatch_type(x.scalar_type(), can_vectorize(in, d, {base ? first : in}), [&]<typename T, int n>() {
    sum_rows<n><<<blocks(tokens, kRowWarps), kRowBlock, 0, at::cuda::getCurrentCUDAStream()>>>(
        tokens, row.size(1), d, in.const_data_ptr<T>(), weights ? factors.const_data_ptr<float>() : nullptr,
        index.const_data_ptr<int64_t>(), base ? first.const_data_ptr<T>() : nullptr, y.data_ptr<T>());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

std::tuple<at::Tensor, at::Tensor> combine_backward(const at::Tensor& dy, const at::Tensor& y,
                                                    const at::Tensor& weights, const at::Tensor& row,
                                                    const at::Tensor& token) {
  if (!is_supported(y.scalar_type()) || weights.scalar_type() != at::kFloat)
    return combine_backward_reference(dy, y, weights, row, token);
  const c10::cuda::CUDAGuard guard(y.device());
  const auto gradient = dy.contiguous(), in = y.contiguous(), factors = weights.contiguous(),
             index = row.contiguous();
  const int64_t rows = y.size(0), d = y.size(1);
  auto dx = at::empty({rows, d}, y.options()), dweights = at::zeros(weights.sizes(), weights.options());
  if (rows == 0) return {dx, dweights};
  dispatch_type(y.scalar_type(), can_vectorize(in, d, {gradient}), [&]<typename T, int n>() {
    combine_gradient<n><<<blocks(rows, kRowWarps), kRowBlock, 0, at::cuda::getCurrentCUDAStream()>>>(
        CombineGradient<T>{.rows = rows,
                           .k = row.size(1),
                           .d = d,
                           .dy = gradient.const_data_ptr<T>(),
                           .y = in.const_data_ptr<T>(),
                           .weights = factors.const_data_ptr<float>(),
                           .row = index.const_data_ptr<int64_t>(),
                           .token = token.const_data_ptr<int64_t>(),
                           .dx = dx.data_ptr<T>(),
                           .dweights = dweights.data_ptr<float>()});
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {dx, dweights};
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) {
  m.impl("count_assignments", count_assignments);
  m.impl("plan_assignments", plan);
  m.impl("gather_rows", gather_rows);
  m.impl("sum_rows", cuda_sum_rows);
  m.impl("combine_backward", combine_backward);
}

}  // namespace hero::ops
