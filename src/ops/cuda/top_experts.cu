// Top-k routing on CUDA.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/cuda/kernels/top_experts.cuh"
#include "ops/cuda/launch.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

using namespace cuda;

constexpr int64_t kMaxRoutedExperts = 32 * kWarpSize;
constexpr int64_t kWeightThreads = 128;

at::Tensor top_experts(const at::Tensor& scores, const std::optional<at::Tensor>& bias, int64_t k,
                       int64_t groups, int64_t kept_groups) {
  if (scores.scalar_type() != at::kFloat || (bias && bias->scalar_type() != at::kFloat) ||
      scores.size(1) > kMaxRoutedExperts || groups > kMaxGroups)
    return top_experts_reference(scores, bias, k, groups, kept_groups);
  const c10::cuda::CUDAGuard guard(scores.device());
  const auto offsets = bias ? bias->contiguous() : at::Tensor();
  auto ids = at::empty({scores.size(0), k}, scores.options().dtype(at::kLong));
  if (ids.numel() == 0) return ids;
  const TopExpertsParams params{.rows = scores.size(0),
                                .experts = scores.size(1),
                                .k = k,
                                .scores = scores.const_data_ptr<float>(),
                                .bias = bias ? offsets.const_data_ptr<float>() : nullptr,
                                .groups = groups,
                                .kept_groups = kept_groups,
                                .ids = ids.data_ptr<int64_t>()};
  const auto grid = blocks(params.rows, kSelectWarps);
  const dim3 block(kWarpSize, kSelectWarps);
  const auto stream = at::cuda::getCurrentCUDAStream();
  if (params.experts <= 2 * kWarpSize) {
    select_experts<2><<<grid, block, 0, stream>>>(params);
  } else if (params.experts <= 8 * kWarpSize) {
    select_experts<8><<<grid, block, 0, stream>>>(params);
  } else {
    select_experts<32><<<grid, block, 0, stream>>>(params);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return ids;
}

ExpertWeightsParams params_of(const at::Tensor& scores, const at::Tensor& ids, bool normalize, double eps,
                              double factor) {
  return {.rows = scores.size(0),
          .experts = scores.size(1),
          .k = ids.size(1),
          .scores = scores.const_data_ptr<float>(),
          .ids = ids.const_data_ptr<int64_t>(),
          .normalize = normalize,
          .eps = static_cast<float>(eps),
          .factor = static_cast<float>(factor)};
}

at::Tensor weights_forward(const at::Tensor& scores, const at::Tensor& ids, bool normalize, double eps,
                           double factor) {
  if (scores.scalar_type() != at::kFloat)
    return expert_weights_reference(scores, ids, normalize, eps, factor);
  const c10::cuda::CUDAGuard guard(scores.device());
  auto weights = at::empty(ids.sizes(), scores.options());
  if (weights.numel() == 0) return weights;
  const auto params = params_of(scores, ids, normalize, eps, factor);
  expert_weights_forward<<<blocks(params.rows, kWeightThreads), kWeightThreads, 0,
                           at::cuda::getCurrentCUDAStream()>>>(params, weights.data_ptr<float>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return weights;
}

at::Tensor weights_backward(const at::Tensor& dweights, const at::Tensor& scores, const at::Tensor& ids,
                            bool normalize, double eps, double factor) {
  if (scores.scalar_type() != at::kFloat || dweights.scalar_type() != at::kFloat)
    return expert_weights_backward_reference(dweights, scores, ids, normalize, eps, factor);
  const c10::cuda::CUDAGuard guard(scores.device());
  auto dscores = at::empty(scores.sizes(), scores.options());
  if (dscores.numel() == 0) return dscores;
  const auto params = params_of(scores, ids, normalize, eps, factor);
  expert_weights_gradient<<<blocks(params.rows, kSelectWarps), dim3(kWarpSize, kSelectWarps), 0,
                            at::cuda::getCurrentCUDAStream()>>>(params, dweights.const_data_ptr<float>(),
                                                                dscores.data_ptr<float>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return dscores;
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) {
  m.impl("top_experts", top_experts);
  m.impl("expert_weights", weights_forward);
  m.impl("expert_weights_backward", weights_backward);
}

}  // namespace hero::ops
