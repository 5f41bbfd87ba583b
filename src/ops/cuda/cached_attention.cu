// Inference operators on CUDA.
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cached_attention.h"
#include "ops/cuda/kernels/cached_attention.cuh"
#include "ops/cuda/launch.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

using namespace cuda;

// Whether every row of x, in every head, is aligned to and a multiple of 16 bytes.
bool whole_vectors(const at::Tensor& x) {
  const auto whole = [&](int64_t n) { return n * static_cast<int64_t>(x.element_size()) % 16 == 0; };
  return aligned(x) && whole(x.size(2)) && whole(x.stride(0)) && whole(x.stride(1));
}

at::Tensor attention(const at::Tensor& q, at::TensorList keys, at::TensorList values, at::IntArrayRef lengths,
                     at::IntArrayRef counts, int64_t v, double scale) {
  const int64_t heads = q.size(1);
  const bool vectors = v * static_cast<int64_t>(q.element_size()) % 16 == 0 &&
                       std::ranges::all_of(keys, whole_vectors) && std::ranges::all_of(values, whole_vectors);
  const int64_t columns = vectors ? v * static_cast<int64_t>(q.element_size()) / 16 : v;
  if (!is_supported(q.scalar_type()) || !last_dim_contiguous(q, keys, values) || q.size(2) > kMaxKeyWidth ||
      v == 0 || columns > kAttentionThreads)
    return cached_attention_reference(q, keys, values, lengths, counts, v, scale);
  const c10::cuda::CUDAGuard guard(q.device());
  auto out = at::empty({q.size(0), heads, v}, q.options());
  dispatch_type(q.scalar_type(), vectors, [&]<typename T, int n>() {
    int64_t first = 0;
    for (size_t begin = 0; begin < counts.size(); begin += kMaxSequences) {
      const size_t end = std::min(counts.size(), begin + kMaxSequences);
      CachedAttentionParams<T> params{.qk = q.size(2),
                                      .v = v,
                                      .q = q.const_data_ptr<T>() + first * q.stride(0),
                                      .ld_q = q.stride(0),
                                      .ld_q_head = q.stride(1),
                                      .scale = static_cast<float>(scale),
                                      .out = out.data_ptr<T>() + first * heads * v};
      int64_t rows = 0;
      for (size_t i = begin; i < end; ++i) {
        params.sequences[i - begin] = {.keys = keys[i].const_data_ptr<T>(),
                                       .values = values[i].const_data_ptr<T>(),
                                       .ld_key = keys[i].stride(0),
                                       .ld_key_head = keys[i].stride(1),
                                       .ld_value = values[i].stride(0),
                                       .ld_value_head = values[i].stride(1),
                                       .groups = heads / keys[i].size(1),
                                       .positions = lengths[i],
                                       .count = counts[i],
                                       .first = rows};
        rows += counts[i];
      }
      cached_attention_kernel<n>
          <<<dim3(static_cast<unsigned>(rows), static_cast<unsigned>(heads)),
             dim3(kWarpSize, kAttentionWarps), 0, at::cuda::getCurrentCUDAStream()>>>(params);
      first += rows;
    }
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

// One batched GEMM over the heads.
at::Tensor heads_linear(const at::Tensor& x, const at::Tensor& w, bool transposed) {
  if (!is_supported(x.scalar_type()) || w.scalar_type() != x.scalar_type())
    return heads_linear_reference(x, w, transposed);
  return at::bmm(x.transpose(0, 1), transposed ? w : w.transpose(1, 2)).transpose(0, 1).contiguous();
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) {
  m.impl("cached_attention", attention);
  m.impl("heads_linear", heads_linear);
}

}  // namespace hero::ops
