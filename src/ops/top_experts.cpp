// Top-k routing: selects the experts of each token and computes their weights. Ties go to the lower index.
#include <ATen/ATen.h>

#include <limits>

#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {
namespace {

// Indices of the k largest elements of every row; ties in column order.
at::Tensor stable_top_k(const at::Tensor& x, int64_t k) {
  return std::get<1>(x.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true)).slice(-1, 0, k);
}

// Sets the scores of experts outside the best groups to -inf.
at::Tensor mask_ineligible_groups(const at::Tensor& scores, int64_t groups, int64_t kept_groups) {
  const int64_t per_group = scores.size(1) / groups;
  const auto best =
      std::get<0>(scores.unflatten(1, {groups, per_group}).topk(std::min<int64_t>(2, per_group), -1)).sum(-1);
  const auto chosen = at::zeros_like(best, best.options().dtype(at::kBool))
                          .scatter_(1, stable_top_k(best, kept_groups), true);
  return scores.masked_fill(chosen.repeat_interleave(per_group, 1).logical_not(),
                            -std::numeric_limits<double>::infinity());
}

}  // namespace

at::Tensor top_experts_reference(const at::Tensor& scores, const std::optional<at::Tensor>& bias, int64_t k,
                                 int64_t groups, int64_t kept_groups) {
  auto eligible = bias ? scores + *bias : scores;
  if (groups > 1) eligible = mask_ineligible_groups(eligible, groups, kept_groups);
  return stable_top_k(eligible, k).contiguous();
}

at::Tensor expert_weights_reference(const at::Tensor& scores, const at::Tensor& ids, bool normalize,
                                    double eps, double factor) {
  const auto chosen = scores.gather(1, ids);
  return (normalize ? chosen / (chosen.sum(-1, true) + eps) : chosen) * factor;
}

at::Tensor expert_weights_backward_reference(const at::Tensor& dweights, const at::Tensor& scores,
                                             const at::Tensor& ids, bool normalize, double eps,
                                             double factor) {
  auto d = dweights * factor;
  if (normalize) {
    const auto chosen = scores.gather(1, ids), sum = chosen.sum(-1, true) + eps;
    d = (d - (d * chosen).sum(-1, true) / sum) / sum;
  }
  // Not scatter_: its deterministic CUDA implementation sorts.
  const auto experts = at::arange(scores.size(1), ids.options());
  auto dscores = at::zeros_like(scores);
  for (int64_t k = 0; k < ids.size(1); ++k)
    dscores = at::where(ids.slice(1, k, k + 1).eq(experts), d.slice(1, k, k + 1), dscores);
  return dscores;
}

namespace {

struct ExpertWeights : torch::autograd::Function<ExpertWeights> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& scores,
                            const at::Tensor& ids, bool normalize, double eps, double factor) {
    static const auto op = find_operator("hero::expert_weights", expert_weights_reference);
    if (ctx) {
      ctx->save_for_backward({scores, ids});
      ctx->saved_data["normalize"] = normalize;
      ctx->saved_data["eps"] = eps;
      ctx->saved_data["factor"] = factor;
    }
    return op.call(scores, ids, normalize, eps, factor);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator("hero::expert_weights_backward", expert_weights_backward_reference);
    const auto saved = ctx->get_saved_variables();
    return {op.call(grads[0].contiguous(), saved[0], saved[1], ctx->saved_data["normalize"].toBool(),
                    ctx->saved_data["eps"].toDouble(), ctx->saved_data["factor"].toDouble()),
            {},
            {},
            {},
            {}};
  }
};

}  // namespace

at::Tensor top_experts(const at::Tensor& scores_TE, const at::Tensor& bias_E, int64_t k, int64_t groups,
                       int64_t kept_groups) {
  TORCH_CHECK(scores_TE.dim() == 2 && groups >= 1 && scores_TE.size(1) % groups == 0 && kept_groups >= 1 &&
                  kept_groups <= groups && k >= 1 && k <= scores_TE.size(1) / groups * kept_groups,
              "top_experts: expected scores [T, E], groups dividing E, and 1 to E / groups * kept_groups "
              "experts per token, got ",
              scores_TE.sizes(), ", groups = ", groups, ", kept_groups = ", kept_groups, ", k = ", k);
  TORCH_CHECK(!bias_E.defined() || bias_E.sizes() == scores_TE.sizes().slice(1),
              "top_experts: the bias must be [E] = [", scores_TE.size(1), "], got ", bias_E.sizes());
  static const auto op = find_operator("hero::top_experts", top_experts_reference);
  return op.call(scores_TE.contiguous(), bias_E.defined() ? std::optional(bias_E) : std::nullopt, k, groups,
                 kept_groups);
}

at::Tensor expert_weights(const at::Tensor& scores_TE, const at::Tensor& ids_TK, bool normalize, double eps,
                          double factor) {
  TORCH_CHECK(scores_TE.dim() == 2 && ids_TK.dim() == 2 && ids_TK.size(0) == scores_TE.size(0) &&
                  ids_TK.scalar_type() == at::kLong,
              "expert_weights: expected scores [T, E] and int64 ids [T, K], got ", scores_TE.sizes(), " and ",
              ids_TK.scalar_type(), " ", ids_TK.sizes());
  return differentiable<ExpertWeights>(scores_TE.contiguous(), ids_TK.contiguous(), normalize, eps, factor);
}

}  // namespace hero::ops
