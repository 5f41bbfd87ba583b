// Output projection and cross-entropy on CUDA, a chunk of tokens at a time: fp32 logits from cuBLAS, one
// kernel for the losses and the in-place gradient of the logits, then GEMMs for dx and dw, which accumulates
// over chunks in fp32.
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/kernels/cross_entropy_clusters.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/mm_fp32.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

using namespace cuda;

constexpr int64_t kLogits = int64_t{1} << 28;  // per chunk: 1 GiB; every chunk reads and writes dw
constexpr int64_t kMinChunk = 128;             // tokens; chunks are multiples of it

bool fits_in_cluster(const RowParts& parts) {
  const auto* device = at::cuda::getCurrentDeviceProperties();
  return device->major >= 9 && parts.bytes <= static_cast<int64_t>(device->sharedMemPerBlockOptin);
}

template <typename T, int n>
void launch_in_clusters(const CrossEntropyParams& params, int64_t rows, const RowParts& parts) {
  const auto kernel = losses_and_gradients_in_clusters<n, T>;
  const auto bytes = static_cast<int>(parts.bytes), blocks = parts.blocks;
  C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows * blocks));
  config.blockDim = dim3(kRowThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = at::cuda::getCurrentCUDAStream();
  config.attrs = &cluster;
  config.numAttrs = 1;
  C10_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params));
}

template <typename T, int n>
void launch_cross_entropy(const CrossEntropyParams& params, int64_t rows, bool gradients) {
  const auto parts = row_parts(params.vocabulary, n);
  if (gradients && fits_in_cluster(parts)) return launch_in_clusters<T, n>(params, rows, parts);
  const auto stream = at::cuda::getCurrentCUDAStream();
  const dim3 grid(static_cast<unsigned>(rows));
  if (gradients) {
    losses_and_gradients<n, true, T><<<grid, kLossThreads, 0, stream>>>(params);
  } else {
    losses_and_gradients<n, false, T><<<grid, kLossThreads, 0, stream>>>(params);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& x, const at::Tensor& w,
                                                                    const at::Tensor& targets, bool needs_dx,
                                                                    bool needs_dw) {
  const auto type = x.scalar_type();
  if (!is_supported(type) || w.scalar_type() != type)
    return linear_cross_entropy_reference(x, w, targets, needs_dx, needs_dw);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t tokens = x.size(0), d = x.size(1), v = w.size(0);
  const auto wide = x.options().dtype(at::kFloat);
  const auto target = targets.contiguous();
  auto dx = at::empty({needs_dx ? tokens : 0, d}, x.options()), dw = at::empty({needs_dw ? v : 0, d}, wide);
  if (tokens == 0) return {at::zeros({}, wide), dx, dw.zero_()};
  const int64_t chunk = std::min(tokens, std::max(kMinChunk, kLogits / v / kMinChunk * kMinChunk));
  const auto buffer = at::empty({chunk, v}, wide), losses = at::empty({tokens}, wide);
  for (int64_t t = 0; t < tokens; t += chunk) {
    const int64_t rows = std::min(chunk, tokens - t);
    const auto in = x.slice(0, t, t + rows);
    const auto logits = buffer.slice(0, 0, rows);
    mm_out_fp32(logits, in, w.t());
    const CrossEntropyParams params{.vocabulary = v,
                                    .logits = logits.data_ptr<float>(),
                                    .targets = target.const_data_ptr<int64_t>() + t,
                                    .losses = losses.data_ptr<float>() + t};
    // Vectors of four logits for every gradient type.
    dispatch_type(type, v % 4 == 0, [&]<typename T, int n>() {
      launch_cross_entropy<T, n == 1 ? 1 : 4>(params, rows, needs_dx || needs_dw);
    });
    if (!needs_dx && !needs_dw) continue;
    // View of the front part of each row in the gradient's type.
    const auto dz = logits.view(type).slice(1, 0, v);
    if (needs_dx) {
      auto dx_rows = dx.slice(0, t, t + rows);
      at::mm_out(dx_rows, dz, w);
    }
    if (!needs_dw) continue;
    if (t == 0) {
      mm_out_fp32(dw, dz.t(), in);
    } else {
      addmm_fp32(dw, dz.t(), in);
    }
  }
  return {at::sum(losses, at::kDouble).to(at::kFloat), dx, dw};
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) { m.impl("linear_cross_entropy_forward", linear_cross_entropy); }

}  // namespace hero::ops
