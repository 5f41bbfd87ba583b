#pragma once
// One layer's router: logits from the hidden state and the visible routing history, by its kind's functions.
#include <string>
#include <vector>

#include "model/history.h"
#include "model/parameters.h"

namespace hero {

class Router;

/// The computation of one router kind; model/router_kind.h has everything else. router.cpp has the table.
struct RouterFunctions {
  std::string kind;  ///< value of router.kind
  /// Adds the weights that RouterKind::weights lists for layer l, initialized, and returns their leaves in
  /// the same order, followed by shared ones that an earlier layer added.
  std::vector<at::Tensor> (*add_weights)(Parameters& parameters, const std::string& prefix, int64_t l,
                                         const Config& config, const HistoryLayout& layout);
  /// Logits, probabilities and statistics of x_TD, the MoE layer's input. Writes the layer's history slot.
  ops::RouteOutput (*forward)(const Router& router, const at::Tensor& x_TD, RoutingHistory& history);
};

class Router {
 public:
  /// Layer l (from 1); `prefix` is the MoE block's name in checkpoints ("model.layers.3.mlp"). `layout` must
  /// outlive the router.
  Router(Parameters& parameters, const std::string& prefix, int64_t l, const Config& config,
         const HistoryLayout& layout);

  /// x_TD is the MoE layer's input. Writes this layer's history slot.
  ops::RouteOutput operator()(const at::Tensor& x_TD, RoutingHistory& history) const {
    return functions_->forward(*this, x_TD, history);
  }

  int64_t layer() const { return l_; }
  const RouterConfig& config() const { return config_; }
  const HistoryLayout& layout() const { return *layout_; }
  const std::vector<at::Tensor>& weights() const { return weights_; }
  /// The first weight: W [E, D+M*E] of a baseline or HERO router.
  const at::Tensor& weight() const { return weights_.front(); }

 private:
  int64_t l_;
  RouterConfig config_;
  const HistoryLayout* layout_;
  const RouterFunctions* functions_;
  std::vector<at::Tensor> weights_;
};

/// Dtype of the router's operands and of the history.
at::ScalarType router_dtype(const Config& config);

/// The dtype of train.dtype.
at::ScalarType train_dtype(const Config& config);

}  // namespace hero
