#pragma once
// The MoE layer, as its picture: router(x, history) -> Routing, plan, permute, experts, combine with the
// residual.
#include <optional>

#include "model/layers.h"
#include "model/part.h"
#include "model/policy.h"
#include "model/router.h"

namespace hero {

/// One layer's routing of one micro-batch: the value that travels to losses and logs.
struct Routing {
  int64_t layer = 0;    ///< l, from 1
  at::Tensor logits;    ///< [T, E], differentiable
  at::Tensor probs;     ///< [T, E] softmax, differentiable
  at::Tensor stats;     ///< [T, 5] as RouteOutput
  at::Tensor ids;       ///< [T, K] chosen experts before capacity
  at::Tensor weights;   ///< [T, K], no gradient here
  at::Tensor assigned;  ///< [E] int64 assignments before capacity
  at::Tensor counts;    ///< [E] int64 rows that each expert computed
};

/// Where a forward pass stands, for what depends on it: jitter and capacity.
struct Position {
  bool training = false;
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_token = 0;  ///< number, within the step's global batch, of the micro-batch's first token
};

class Moe {
 public:
  Moe(Parameters& parameters, const std::string& prefix, int64_t l, const Config& config,
      const HistoryLayout& layout, const ModelPart& part);

  struct Output {
    at::Tensor y_TD;
    Routing routing;
  };
  /// y = shared experts of x + weighted experts of x, and + residual where that is defined.
  Output operator()(const at::Tensor& x_TD, RoutingHistory& history, const Position& position,
                    const at::Tensor& residual_TD = {}) const;

  const Router& router() const { return router_; }
  /// Selection bias of aux-loss-free balancing [E]; undefined where it is off.
  const at::Tensor& bias() const { return bias_; }

 private:
  /// The experts' rows, and beside them what the shared experts make of x.
  struct Computed {
    at::Tensor rows_ND, shared_TD;
  };
  Computed compute(const at::Tensor& x_TD, const ops::Plan& plan) const;
  at::Tensor shared(const at::Tensor& x_TD) const { return shared_ ? (*shared_)(x_TD) : at::Tensor(); }

  ModelConfig model_;
  RouterConfig config_;
  const Group* expert_group_;
  Router router_;
  at::Tensor gate_up_, down_, bias_;
  std::optional<FeedForward> shared_;
};

}  // namespace hero
