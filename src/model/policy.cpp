#include "model/policy.h"

#include <ATen/ATen.h>

#include <cmath>

#include "ops/count.h"
#include "ops/ops.h"

namespace hero {
namespace {

// Gives every expert the same number of assignments, for throughput measurements.
at::Tensor round_robin_ids(int64_t tokens, int64_t k, int64_t experts, int64_t layer, at::Device device) {
  const auto indices = at::arange(tokens * k, at::TensorOptions(device).dtype(at::kLong)) + layer;
  return indices.remainder(experts).view({tokens, k});
}

}  // namespace

at::Tensor routing_scores(const at::Tensor& logits_TE, const at::Tensor& probs_TE, const ModelConfig& model) {
  return model.has_sigmoid_scores() ? logits_TE.sigmoid() : probs_TE;
}

ExpertSelection sparse_route(const at::Tensor& logits_TE, const at::Tensor& probs_TE,
                             const at::Tensor& bias_E, const ModelConfig& model, const RouterConfig& router,
                             int64_t layer, double capacity_factor) {
  const int64_t k = model.num_experts_per_tok, experts = logits_TE.size(1);
  const auto scores = routing_scores(logits_TE, probs_TE, model);
  ExpertSelection selection;
  selection.ids = router.force_balance ? round_robin_ids(scores.size(0), k, experts, layer, scores.device())
                                       : ops::top_experts(scores, bias_E, k, model.n_group, model.topk_group);
  selection.weights = ops::expert_weights(scores, selection.ids, model.norm_topk_prob, model.norm_topk_eps,
                                          model.routed_scaling_factor);
  selection.kept = selection.ids;
  if (capacity_factor > 0) {
    selection.kept = drop_beyond_capacity(selection.ids, selection.weights.detach(), experts, capacity_factor,
                                          router.drop_policy);
    selection.weights = selection.weights * selection.kept.ge(0);
  }
  return selection;
}

at::Tensor drop_beyond_capacity(const at::Tensor& ids_TK, const at::Tensor& weights_TK, int64_t experts,
                                double capacity_factor, DropPolicy drop_policy) {
  const auto assignments = static_cast<double>(ids_TK.numel());
  const auto capacity =
      static_cast<int64_t>(std::ceil(capacity_factor * assignments / static_cast<double>(experts)));
  // A plan keeps the order of assignments within an expert, so its rows give their positions there.
  const auto position_in_expert = [&](const at::Tensor& ids) {
    const auto plan = ops::plan(ids, experts);
    return plan.row - plan.offsets.index_select(0, ids.flatten()).view_as(ids);
  };
  if (drop_policy == DropPolicy::kPosition)
    return ids_TK.masked_fill(position_in_expert(ids_TK).ge(capacity), -1);
  const auto order = at::argsort(weights_TK.flatten(), /*stable=*/true, 0, /*descending=*/true);
  const auto position = position_in_expert(ids_TK.flatten().index_select(0, order).unsqueeze(1)).flatten();
  return ids_TK.masked_fill(position.index_select(0, at::argsort(order)).view_as(ids_TK).ge(capacity), -1);
}

at::Tensor count_assignments(const at::Tensor& ids_TK, int64_t experts) {
  return ops::count_assignments(ids_TK.reshape({1, -1}), experts)[0];
}

}  // namespace hero
