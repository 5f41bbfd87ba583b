#pragma once
// From router logits to a sparse choice: the operator SparseRoute of Algorithm 2. It sees logits only, so it
// is the same for every kind of router (Corollary 1).
#include <ATen/core/Tensor.h>

#include "config/config.h"

namespace hero {

/// A layer's choice, before and after capacity.
struct Choice {
  at::Tensor ids;      ///< [T, K] int64, the chosen experts, best first
  at::Tensor kept;     ///< [T, K] int64, the same with -1 where capacity dropped the assignment
  at::Tensor weights;  ///< [T, K] fp32 (fp64), differentiable; 0 where dropped
};

/// Scores used for weights and selection: softmax (`probs`) or sigmoid of the logits, [T, E].
at::Tensor routing_scores(const at::Tensor& logits_TE, const at::Tensor& probs_TE, const ModelConfig& model);

/// w = s_topk / (sum + eps) * routed_scaling_factor. `bias` [E] (may be undefined) moves the selection, never
/// the weights (arXiv 2408.15664). Groups: only experts of the topk_group groups with the largest sum of
/// their two best scores are eligible (DeepSeek-V3). `layer` shifts the choice of forced balance.
/// `capacity_factor`: see drop_beyond_capacity; 0 drops nothing.
Choice sparse_route(const at::Tensor& logits_TE, const at::Tensor& probs_TE, const at::Tensor& bias_E,
                    const ModelConfig& model, const RouterConfig& router, int64_t layer,
                    double capacity_factor);

/// ids with -1 for assignments beyond ceil(capacity_factor * T * K / E) per expert, those with the smallest
/// weight ("probs") or the latest tokens ("position") first.
at::Tensor drop_beyond_capacity(const at::Tensor& ids_TK, const at::Tensor& weights_TK, int64_t experts,
                                double capacity_factor, const std::string& drop_policy);

/// Number of assignments of each expert, [E] int64; entries of -1 do not count.
at::Tensor count_assignments(const at::Tensor& ids_TK, int64_t experts);

}  // namespace hero
