#include "model/policy.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "ops/any_order.h"
#include "ops/differentiable.h"

namespace hero {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// Scores of experts outside the best groups become -inf.
at::Tensor limit_to_groups(const at::Tensor& scores, int64_t groups, int64_t kept) {
  const int64_t tokens = scores.size(0), per_group = scores.size(1) / groups;
  const auto best =
      std::get<0>(scores.view({tokens, groups, per_group}).topk(std::min<int64_t>(2, per_group), -1)).sum(-1);
  const auto chosen = at::zeros_like(best, best.options().dtype(at::kBool))
                          .scatter_(1, std::get<1>(best.topk(kept, -1)), true);
  return scores.masked_fill(chosen.repeat_interleave(per_group, 1).logical_not(), kNever);
}

// Every expert gets the same number of assignments; for throughput measurements.
at::Tensor balanced_ids(int64_t tokens, int64_t k, int64_t experts, int64_t layer, at::Device device) {
  const auto turns = at::arange(tokens * k, at::TensorOptions(device).dtype(at::kLong)) + layer;
  return turns.remainder(experts).view({tokens, k});
}

struct Pick : torch::autograd::Function<Pick> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& ids) {
    ctx->save_for_backward({ids});
    ctx->saved_data["columns"] = x.size(1);
    return x.gather(1, ids);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const ops::AnyOrder guard;
    const auto ids = ctx->get_saved_variables()[0];
    auto dx = at::zeros({ids.size(0), ctx->saved_data["columns"].toInt()}, grads[0].options());
    dx.scatter_add_(1, ids, grads[0]);
    return {dx, {}};
  }
};

}  // namespace

at::Tensor pick_columns(const at::Tensor& x, const at::Tensor& ids) {
  return ops::differentiable<Pick>(x, ids);
}

at::Tensor routing_scores(const at::Tensor& logits_TE, const at::Tensor& probs_TE, const ModelConfig& model) {
  return model.scoring_func == "sigmoid" ? logits_TE.sigmoid() : probs_TE;
}

Choice sparse_route(const at::Tensor& logits_TE, const at::Tensor& probs_TE, const at::Tensor& bias_E,
                    const ModelConfig& model, const RouterConfig& router, int64_t layer) {
  const int64_t k = model.num_experts_per_tok, experts = logits_TE.size(1);
  const auto scores = routing_scores(logits_TE, probs_TE, model);
  Choice choice;
  {
    at::NoGradGuard no_grad;
    auto eligible = bias_E.defined() ? scores + bias_E : scores.detach();
    if (model.n_group > 1) eligible = limit_to_groups(eligible, model.n_group, model.topk_group);
    choice.ids = router.force_balance ? balanced_ids(scores.size(0), k, experts, layer, scores.device())
                                      : std::get<1>(eligible.topk(k, -1));
  }
  choice.weights = pick_columns(scores, choice.ids);
  if (model.norm_topk_prob)
    choice.weights = choice.weights / (choice.weights.sum(-1, true) + model.norm_topk_eps);
  if (model.routed_scaling_factor != 1.0) choice.weights = choice.weights * model.routed_scaling_factor;
  choice.kept = choice.ids;
  if (router.capacity_factor > 0) {
    choice.kept = drop_beyond_capacity(choice.ids, choice.weights.detach(), experts, router.capacity_factor,
                                       router.drop_policy);
    choice.weights = choice.weights * choice.kept.ge(0);
  }
  return choice;
}

at::Tensor drop_beyond_capacity(const at::Tensor& ids_TK, const at::Tensor& weights_TK, int64_t experts,
                                double capacity_factor, const std::string& drop_policy) {
  const auto assignments = static_cast<double>(ids_TK.numel());
  const auto capacity =
      static_cast<int64_t>(std::ceil(capacity_factor * assignments / static_cast<double>(experts)));
  const auto flat = ids_TK.flatten();
  // Assignments by priority, then (stably) by expert; the place within the expert decides.
  const auto order = drop_policy == "probs"
                         ? at::argsort(weights_TK.flatten(), /*stable=*/true, 0, /*descending=*/true)
                         : at::arange(flat.size(0), flat.options());
  const auto sorted =
      order.index_select(0, at::argsort(flat.index_select(0, order), /*stable=*/true, 0, false));
  const auto counts = count_assignments(ids_TK, experts);
  const auto first = counts.cumsum(0) - counts;
  const auto place =
      at::arange(flat.size(0), flat.options()) - first.index_select(0, flat.index_select(0, sorted));
  auto dropped = at::empty_like(flat, flat.options().dtype(at::kBool));
  const ops::AnyOrder guard;
  dropped.index_copy_(0, sorted, place.ge(capacity));
  return flat.masked_fill(dropped, -1).view_as(ids_TK);
}

at::Tensor count_assignments(const at::Tensor& ids_TK, int64_t experts) {
  // Not bincount and masked_select, which wait for a GPU.
  const ops::AnyOrder guard;
  const auto flat = ids_TK.flatten();
  const auto place = at::where(flat.ge(0), flat, experts);
  return at::zeros({experts + 1}, flat.options())
      .scatter_add_(0, place, at::ones_like(flat))
      .slice(0, 0, experts);
}

}  // namespace hero
