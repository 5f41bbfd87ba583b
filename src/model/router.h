#pragma once
// One layer's router: logits from the hidden state and the visible routing history.
#include "model/history.h"
#include "model/parameters.h"

namespace hero {

class Router {
 public:
  /// Layer l (from 1); `prefix` is the MoE block's name in checkpoints ("model.layers.3.mlp"). Algorithm 1 of
  /// the paper: W [E, D+M*E] ~ U(-b, b), b = 1/sqrt(D + (l-1)E) for any stages; baseline b = 1/sqrt(D).
  Router(Parameters& parameters, const std::string& prefix, int64_t l, const Config& config,
         const HistoryLayout& layout);

  /// Algorithm 2, steps 1 to 6. x_TD is the MoE layer's input. Writes this layer's history slot.
  ops::RouteOutput operator()(const at::Tensor& x_TD, RoutingHistory& history) const;

  int64_t layer() const { return l_; }
  const at::Tensor& weight() const { return weight_; }

 private:
  int64_t l_;
  RouterConfig config_;
  const HistoryLayout* layout_;
  at::Tensor weight_;
};

/// Dtype of the router's operands and of the history.
at::ScalarType router_dtype(const Config& config);

/// The dtype of train.dtype.
at::ScalarType train_dtype(const Config& config);

}  // namespace hero
