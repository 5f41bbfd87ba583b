#pragma once
// Expert selection from router logits: SparseRoute of Algorithm 2. It depends only on the logits, so it is
// the same for every kind of router (Corollary 1).
#include <ATen/core/Tensor.h>

#include "config/config.h"

namespace hero {

/// The selected experts, before and after capacity.
struct ExpertSelection {
  at::Tensor ids;      ///< [T, K] int64, the selected experts, best first
  at::Tensor kept;     ///< [T, K] int64, the same with -1 where capacity dropped the assignment
  at::Tensor weights;  ///< [T, K] fp32 (fp64), differentiable; 0 where dropped
};

/// Scores used for weights and selection: softmax (`probs`) or sigmoid of the logits, [T, E].
at::Tensor routing_scores(const at::Tensor& logits_TE, const at::Tensor& probs_TE, const ModelConfig& model);

/// w = s_topk / (sum + eps) * routed_scaling_factor. `bias` [E] (may be undefined) affects the selection but
/// not the weights (arXiv 2408.15664). Groups: only experts of the topk_group groups with the largest sum of
/// their two best scores are eligible (DeepSeek-V3). `layer` offsets the round-robin of forced balance.
/// `capacity_factor`: see drop_beyond_capacity; 0 drops nothing.
ExpertSelection sparse_route(const at::Tensor& logits_TE, const at::Tensor& probs_TE,
                             const at::Tensor& bias_E, const ModelConfig& model, const RouterConfig& router,
                             int64_t layer, double capacity_factor);

/// Replaces assignments beyond ceil(capacity_factor * T * K / E) per expert by -1.
at::Tensor drop_beyond_capacity(const at::Tensor& ids_TK, const at::Tensor& weights_TK, int64_t experts,
                                double capacity_factor, DropPolicy drop_policy);

/// Number of assignments to each expert, [E] int64; entries of -1 do not count.
at::Tensor count_assignments(const at::Tensor& ids_TK, int64_t experts);

}  // namespace hero
