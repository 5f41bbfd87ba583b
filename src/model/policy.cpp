#include "model/policy.h"

#include <ATen/ATen.h>

#include <cmath>

#include "ops/any_order.h"
#include "ops/ops.h"

namespace hero {
namespace {

// Every expert gets the same number of assignments; for throughput measurements.
at::Tensor balanced_ids(int64_t tokens, int64_t k, int64_t experts, int64_t layer, at::Device device) {
  const auto turns = at::arange(tokens * k, at::TensorOptions(device).dtype(at::kLong)) + layer;
  return turns.remainder(experts).view({tokens, k});
}

}  // namespace

at::Tensor routing_scores(const at::Tensor& logits_TE, const at::Tensor& probs_TE, const ModelConfig& model) {
  return model.scoring_func == "sigmoid" ? logits_TE.sigmoid() : probs_TE;
}

Choice sparse_route(const at::Tensor& logits_TE, const at::Tensor& probs_TE, const at::Tensor& bias_E,
                    const ModelConfig& model, const RouterConfig& router, int64_t layer,
                    double capacity_factor) {
  const int64_t k = model.num_experts_per_tok, experts = logits_TE.size(1);
  const auto scores = routing_scores(logits_TE, probs_TE, model);
  Choice choice;
  choice.ids = router.force_balance
                   ? balanced_ids(scores.size(0), k, experts, layer, scores.device())
                   : ops::top_experts(scores.detach(), bias_E, k, model.n_group, model.topk_group);
  choice.weights = ops::expert_weights(scores, choice.ids, model.norm_topk_prob, model.norm_topk_eps,
                                       model.routed_scaling_factor);
  choice.kept = choice.ids;
  if (capacity_factor > 0) {
    choice.kept = drop_beyond_capacity(choice.ids, choice.weights.detach(), experts, capacity_factor,
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
