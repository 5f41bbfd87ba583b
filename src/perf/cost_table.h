#pragma once
// The paper's table of costs: a baseline and HERO measured in turn.
#include <string>

#include "perf/step_benchmark.h"

namespace hero {

struct CostTableOptions {
  StepOptions steps;
  int64_t rounds = 3;  ///< each measures the baseline, then HERO
  bool as_json = false;
};

/// The first `layers` of the model: stages keep their proportions, each at least one MoE layer. UserError
/// where the model has fewer.
Config first_layers(const Config& config, int64_t layers);

/// Measures and prints. UserError where a side would not fit in this machine's memory.
void run_cost_table(const Config& config, const CostTableOptions& options);

}  // namespace hero
