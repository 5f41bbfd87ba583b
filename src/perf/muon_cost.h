#pragma once
// What Muon updates in a decoder layer, and the operations of its Newton-Schulz iterations.
#include "config/config.h"

namespace hero {

struct MuonCost {
  double weights = 0;  ///< which have one moment
  double flops = 0;    ///< per step; five iterations, all products counted in full

  MuonCost& operator+=(const MuonCost& other);
};

/// Of decoder layer i without its routed experts, whose router sees `visible` layers; 0 unless optim.kind is
/// muon. Frozen weights do not count.
MuonCost muon_layer_cost(const Config& config, int64_t i, int64_t visible);

/// Of the routed experts of decoder layer i.
MuonCost muon_expert_cost(const Config& config, int64_t i);

/// Of the whole model.
MuonCost muon_model_cost(const Config& config);

}  // namespace hero
