// Queries and keys of latent attention on CUDA.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/cuda/kernels/latent_heads.cuh"
#include "ops/cuda/launch.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

using namespace cuda;

// The sizes of queries and kv, or of dk and dv, and the tables; must outlive the launch.
struct Tables {
  at::Tensor cos, sin;
  int64_t heads, nope, half, v_width;

  Tables(const at::Tensor& cos_, const at::Tensor& sin_, int64_t heads_, int64_t nope_, int64_t v_width_)
      : cos(cos_.contiguous()),
        sin(sin_.contiguous()),
        heads(heads_),
        nope(nope_),
        half(cos_.size(1)),
        v_width(v_width_) {}
  LatentShape shape() const {
    return {.heads = static_cast<int>(heads),
            .nope = static_cast<int>(nope),
            .half = static_cast<int>(half),
            .v_width = static_cast<int>(v_width),
            .positions = static_cast<unsigned>(cos.size(0)),
            .cos = cos.const_data_ptr<float>(),
            .sin = sin.const_data_ptr<float>()};
  }
  // Whether all columns of the operands begin at whole vectors of 2 * kRopePairs elements.
  bool can_vectorize(std::initializer_list<at::Tensor> operands) const {
    constexpr int64_t values = 2 * kRopePairs;
    bool suited =
        nope % values == 0 && 2 * half % values == 0 && v_width % values == 0 && aligned(cos) && aligned(sin);
    for (const auto& x : operands)
      suited = suited && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % (values * x.element_size()) == 0;
    return suited;
  }
};

bool fused_heads(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return is_supported(x.scalar_type()) && cos.scalar_type() == at::kFloat && sin.scalar_type() == at::kFloat;
}

// Calls f<T, n, pairs, interleaved>().
template <typename F>
void dispatch_pairs(at::ScalarType type, bool vectors, bool interleave, const F& f) {
  dispatch_type(type, vectors, [&]<typename T, int n>() {
    constexpr int pairs = n == 1 ? 1 : kRopePairs;
    if (interleave) return f.template operator()<T, n, pairs, true>();
    f.template operator()<T, n, pairs, false>();
  });
}

std::tuple<at::Tensor, at::Tensor> cuda_latent_heads_forward(const at::Tensor& queries, const at::Tensor& kv,
                                                             const at::Tensor& key, const at::Tensor& cos,
                                                             const at::Tensor& sin, bool interleave) {
  if (!fused_heads(queries, cos, sin))
    return latent_heads_forward_reference(queries, kv, key, cos, sin, interleave);
  const c10::cuda::CUDAGuard guard(queries.device());
  const int64_t nope = queries.size(3) - key.size(2), tokens = key.size(0) * key.size(1);
  const Tables tables(cos, sin, queries.size(2), nope, kv.size(3) - nope);
  const auto from = queries.contiguous(), from_kv = kv.contiguous();
  auto rows = key.reshape({tokens, key.size(2)});  // a view of a column range
  if (rows.stride(1) != 1) rows = rows.contiguous();
  auto q = at::empty(queries.sizes(), queries.options()), k = at::empty(queries.sizes(), queries.options());
  if (q.numel() == 0) return {q, k};
  const bool vectors =
      rows.stride(0) % (2 * kRopePairs) == 0 && tables.can_vectorize({from, from_kv, rows, q, k});
  dispatch_pairs(q.scalar_type(), vectors, interleave, [&]<typename T, int n, int pairs, bool interleaved>() {
    const LatentForwardParams<T> params{.shape = tables.shape(),
                                        .ld_key = rows.stride(0),
                                        .queries = from.const_data_ptr<T>(),
                                        .kv = from_kv.const_data_ptr<T>(),
                                        .key = rows.const_data_ptr<T>(),
                                        .q = q.data_ptr<T>(),
                                        .k = k.data_ptr<T>()};
    latent_heads_forward<n, pairs, interleaved>
        <<<blocks(tokens, 1), kLatentThreads, 0, at::cuda::getCurrentCUDAStream()>>>(params);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {q, k};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cuda_latent_heads_backward(
    const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& cos,
    const at::Tensor& sin, bool interleave) {
  if (!fused_heads(dq, cos, sin)) return latent_heads_backward_reference(dq, dk, dv, cos, sin, interleave);
  const c10::cuda::CUDAGuard guard(dq.device());
  const int64_t b = dk.size(0), s = dk.size(1), h = dk.size(2), nope = dk.size(3) - 2 * cos.size(1);
  const Tables tables(cos, sin, h, nope, dv.size(3));
  const auto from_q = dq.contiguous(), from_k = dk.contiguous(), from_v = dv.contiguous();
  auto dqueries = at::empty(dq.sizes(), dq.options()),
       dkv = at::empty({b, s, h, nope + dv.size(3)}, dq.options()),
       dkey = at::empty({b, s, 2 * tables.half}, dq.options());
  if (b * s == 0) return {dqueries, dkv, dkey};
  const bool vectors = tables.can_vectorize({from_q, from_k, from_v, dqueries, dkv});
  dispatch_pairs(
      dq.scalar_type(), vectors, interleave, [&]<typename T, int n, int pairs, bool interleaved>() {
        const LatentBackwardParams<T> params{.shape = tables.shape(),
                                             .dq = from_q.const_data_ptr<T>(),
                                             .dk = from_k.const_data_ptr<T>(),
                                             .dv = from_v.const_data_ptr<T>(),
                                             .dqueries = dqueries.data_ptr<T>(),
                                             .dkv = dkv.data_ptr<T>(),
                                             .dkey = dkey.data_ptr<T>()};
        latent_heads_backward<n, pairs, interleaved>
            <<<blocks(b * s, 1), kLatentThreads + kWarpSize, 0, at::cuda::getCurrentCUDAStream()>>>(params);
      });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {dqueries, dkv, dkey};
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) {
  m.impl("latent_heads_forward", cuda_latent_heads_forward);
  m.impl("latent_heads_backward", cuda_latent_heads_backward);
}

}  // namespace hero::ops
