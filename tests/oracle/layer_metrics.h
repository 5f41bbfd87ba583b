#pragma once
// Reference implementation of the routing metrics of a layer in metrics.jsonl.
#include "oracle/oracle.h"

namespace oracle {

/// Sums over the tokens of a step.
struct LayerSums {
  double tokens = 0, entropy = 0, rms_hidden = 0, rms_history = 0, rho = 0;
  double hidden_variance = 0, history_variance = 0;  ///< over experts
  at::Tensor assigned_E = {}, kept_E = {};
  bool has_history = false;

  void add(const hero::Config& config, const Weights& weights, const LayerRouting& routing);
  /// By key; without those of the history if the layer has none.
  std::map<std::string, double> metrics() const;
};

}  // namespace oracle
