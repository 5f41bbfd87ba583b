#pragma once
// The MoE layer: router(x, history) -> Routing, plan, permute, experts, unpermute and combine with the
// residual.
#include <optional>

#include "model/layers.h"
#include "model/model_chunk.h"
#include "model/policy.h"
#include "model/router.h"

namespace hero {

/// One layer's routing of one micro-batch, for losses and logging.
struct Routing {
  int64_t layer = 0;    ///< l, from 1
  at::Tensor logits;    ///< [T, E], differentiable
  at::Tensor probs;     ///< [T, E] softmax, differentiable
  at::Tensor stats;     ///< [T, ops::kRouteStats], columns: ops::RouteStat
  at::Tensor ids;       ///< [T, K] selected experts, before capacity
  at::Tensor weights;   ///< [T, K], detached
  at::Tensor assigned;  ///< [E] int64 tokens assigned to each expert, before capacity
  at::Tensor counts;    ///< [E] int64 tokens that each expert processed
};

/// State of a forward pass: what jitter, forced balance and capacity depend on, and documents.
struct ForwardContext {
  bool training = false;
  bool modules = false;  ///< the multi-token prediction modules run, as always in training
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_token = 0;  ///< index of the micro-batch's first token in the step's global batch
  /// If defined, [decoder layers] fp64: each layer raises its element to its largest attention logit.
  at::Tensor max_attention_logits = {};
  /// If defined, int64 [B, S] on the model's device: for every token the first position of its document. Read
  /// with train.document_mask and train.document_positions.
  at::Tensor starts_BS = {};
};

class Moe {
 public:
  Moe(Parameters& parameters, const std::string& prefix, int64_t l, const Config& config,
      const HistoryLayout& layout, const ModelShard& shard);

  struct Output {
    at::Tensor y_TD;
    Routing routing;
  };
  /// y = shared experts of x + weighted experts of x + residual (if defined).
  Output operator()(const at::Tensor& x_TD, RoutingHistory& history, const ForwardContext& context,
                    const at::Tensor& residual_TD = {}) const;

  const Router& router() const { return router_; }
  /// Expert bias of aux-loss-free balancing [E]; undefined if the model has none.
  const at::Tensor& bias() const { return bias_; }

 private:
  struct ExpertOutput {
    at::Tensor rows_ND;    ///< of the routed experts, in the plan's order
    at::Tensor shared_TD;  ///< of the shared experts; undefined without them
  };
  ExpertOutput run_experts(const at::Tensor& x_TD, const ops::Plan& plan) const;
  at::Tensor shared(const at::Tensor& x_TD) const { return shared_ ? (*shared_)(x_TD) : at::Tensor(); }

  ModelConfig model_;
  RouterConfig config_;            // in training
  RouterConfig inference_config_;  // without forced balance
  const Group* expert_group_;
  Router router_;
  at::Tensor gate_up_, down_, bias_;
  std::optional<FeedForward> shared_;
};

}  // namespace hero
