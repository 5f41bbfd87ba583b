// Output projection and cross-entropy on CUDA, a chunk of tokens at a time: fp32 logits by cuBLAS, one kernel
// for the losses and the logits' gradient in place, then the products for dx and, summed over chunks in fp32,
// dw.
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/kernels/cross_entropy.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/products.h"
#include "ops/plain.h"

namespace hero::ops {
namespace {

using namespace cuda;

constexpr int64_t kLogits = int64_t{1} << 27;  // of a chunk: 512 MiB
constexpr int64_t kLeastChunk = 128;           // tokens, and what chunks are multiples of

template <typename T, int n>
void launch(const LossWork& work, int64_t rows, bool gradients) {
  const auto stream = at::cuda::getCurrentCUDAStream();
  const dim3 grid(static_cast<unsigned>(rows));
  if (gradients) {
    losses_and_gradients<n, true, T><<<grid, kLossThreads, 0, stream>>>(work);
  } else {
    losses_and_gradients<n, false, T><<<grid, kLossThreads, 0, stream>>>(work);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& x, const at::Tensor& w,
                                                                    const at::Tensor& targets,
                                                                    bool gradients) {
  const auto type = x.scalar_type();
  if (!suits(type) || w.scalar_type() != type) return linear_cross_entropy_plain(x, w, targets, gradients);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t tokens = x.size(0), d = x.size(1), v = w.size(0);
  const auto wide = x.options().dtype(at::kFloat);
  const auto target = targets.contiguous();
  auto dx = at::empty({gradients ? tokens : 0, d}, x.options()), dw = at::empty({gradients ? v : 0, d}, wide);
  if (tokens == 0) return {at::zeros({}, wide), dx, dw.zero_()};
  const int64_t chunk = std::min(tokens, std::max(kLeastChunk, kLogits / v / kLeastChunk * kLeastChunk));
  const auto buffer = at::empty({chunk, v}, wide), losses = at::empty({tokens}, wide);
  for (int64_t t = 0; t < tokens; t += chunk) {
    const int64_t rows = std::min(chunk, tokens - t);
    const auto in = x.slice(0, t, t + rows);
    const auto logits = buffer.slice(0, 0, rows);
    wide_mm_out(logits, in, w.t());
    const LossWork work{.vocabulary = v,
                        .logits = logits.data_ptr<float>(),
                        .targets = target.const_data_ptr<int64_t>() + t,
                        .losses = losses.data_ptr<float>() + t};
    // Vectors of four logits, whatever the type of the gradient.
    for_type(type, v % 4 == 0,
             [&]<typename T, int n>() { launch<T, n == 1 ? 1 : 4>(work, rows, gradients); });
    if (!gradients) continue;
    // The front part of each row, seen in the gradient's type.
    const auto dz = logits.view(type).slice(1, 0, v);
    auto dx_rows = dx.slice(0, t, t + rows);
    at::mm_out(dx_rows, dz, w);
    if (t == 0) {
      wide_mm_out(dw, dz.t(), in);
    } else {
      add_wide_mm(dw, dz.t(), in);
    }
  }
  return {at::sum(losses, at::kDouble).to(at::kFloat), dx, dw};
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) { m.impl("linear_cross_entropy_forward", linear_cross_entropy); }

}  // namespace hero::ops
