// Queries, keys and values of multi-head latent attention (DeepSeek-V2/V3) from their projections: the last R
// elements of every query are rotated, and the rotary key that all heads share is rotated and appended to
// every head's key. One pass forward and one backward, in which every element of a gradient is written once.
#include <ATen/ATen.h>

#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {
namespace {

// rope_reference for tables of S or of B*S positions.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleave,
                   bool inverse) {
  if (cos.size(0) == x.size(1)) return rope_reference(x, cos, sin, interleave, inverse);
  return rope_reference(x.flatten(0, 1).unsqueeze(0), cos, sin, interleave, inverse).view(x.sizes());
}

// x with its last R elements rotated.
at::Tensor tail_rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleave,
                        bool inverse) {
  const int64_t nope = x.size(3) - 2 * cos.size(1);
  return at::cat({x.slice(3, 0, nope), rotated(x.slice(3, nope), cos, sin, interleave, inverse)}, 3);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> latent_heads_forward_reference(const at::Tensor& queries,
                                                                  const at::Tensor& kv, const at::Tensor& key,
                                                                  const at::Tensor& cos,
                                                                  const at::Tensor& sin, bool interleave) {
  const int64_t nope = queries.size(3) - key.size(2);
  const auto shared = rotated(key.unsqueeze(2), cos, sin, interleave, /*inverse=*/false);
  const auto of_heads = shared.expand({key.size(0), key.size(1), kv.size(2), key.size(2)});
  return {tail_rotated(queries, cos, sin, interleave, /*inverse=*/false),
          at::cat({kv.slice(3, 0, nope), of_heads}, 3)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> latent_heads_backward_reference(
    const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& cos,
    const at::Tensor& sin, bool interleave) {
  const int64_t nope = dk.size(3) - 2 * cos.size(1);
  const auto sum = dk.slice(3, nope).to(accumulation_type(dk.scalar_type())).sum(2, /*keepdim=*/true);
  return {tail_rotated(dq, cos, sin, interleave, /*inverse=*/true), at::cat({dk.slice(3, 0, nope), dv}, 3),
          rotated(sum, cos, sin, interleave, /*inverse=*/true).squeeze(2).to(dk.scalar_type())};
}

namespace {

struct LatentHeadsFunction : torch::autograd::Function<LatentHeadsFunction> {
  // v is an output although it is a view of kv: the backward pass then writes both parts of kv's gradient.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const at::Tensor& queries, const at::Tensor& kv,
                                                const at::Tensor& key, const at::Tensor& cos,
                                                const at::Tensor& sin, bool interleave) {
    static const auto op = find_operator("hero::latent_heads_forward", latent_heads_forward_reference);
    auto [q, k] = op.call(queries, kv, key, cos, sin, interleave);
    if (ctx) {
      ctx->save_for_backward({cos, sin});
      ctx->saved_data["interleave"] = interleave;
    }
    return {q, k, kv.slice(3, queries.size(3) - key.size(2))};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator("hero::latent_heads_backward", latent_heads_backward_reference);
    const auto saved = ctx->get_saved_variables();
    auto [dqueries, dkv, dkey] =
        op.call(grads[0], grads[1], grads[2], saved[0], saved[1], ctx->saved_data["interleave"].toBool());
    return {dqueries, dkv, dkey, {}, {}, {}};
  }
};

}  // namespace

LatentHeads latent_heads(const at::Tensor& queries, const at::Tensor& kv, const at::Tensor& key,
                         const at::Tensor& cos, const at::Tensor& sin, bool interleave) {
  TORCH_CHECK(queries.dim() == 4 && kv.dim() == 4 && key.dim() == 3 &&
                  queries.sizes().slice(0, 3) == kv.sizes().slice(0, 3) &&
                  queries.sizes().slice(0, 2) == key.sizes().slice(0, 2),
              "latent_heads: expected queries [B, S, H, N+R], kv [B, S, H, N+P] and key [B, S, R], got ",
              queries.sizes(), ", ", kv.sizes(), " and ", key.sizes());
  const int64_t width = key.size(2), nope = queries.size(3) - width;
  TORCH_CHECK(width % 2 == 0 && nope >= 0 && nope <= kv.size(3),
              "latent_heads: R must be even, and N from 0 to kv's width ", kv.size(3), ", got ", width,
              " and ", nope);
  TORCH_CHECK(queries.scalar_type() == kv.scalar_type() && queries.scalar_type() == key.scalar_type(),
              "latent_heads: queries, kv and key must have one type, got ", queries.scalar_type(), ", ",
              kv.scalar_type(), " and ", key.scalar_type());
  const int64_t length = key.size(1), tokens = key.size(0) * length;
  TORCH_CHECK(cos.dim() == 2 && (cos.size(0) == length || cos.size(0) == tokens) &&
                  cos.size(1) == width / 2 && sin.sizes() == cos.sizes(),
              "latent_heads: cos and sin must be [S, R/2] = [", length, ", ", width / 2,
              "] or [B*S, R/2], got ", cos.sizes(), " and ", sin.sizes());
  const auto parts = differentiable<LatentHeadsFunction>(queries, kv, key, cos, sin, interleave);
  return {.q = parts[0], .k = parts[1], .v = parts[2]};
}

}  // namespace hero::ops
