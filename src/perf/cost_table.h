#pragma once
// The paper's cost table: the baseline and compared_kind(), measured alternately.
#include <string>

#include "perf/step_benchmark.h"

namespace hero {

struct CostTableOptions {
  StepOptions steps;
  int64_t rounds = 3;  ///< each measures the baseline, then the other router
  bool as_json = false;
};

/// The first `layers` layers of the model. Stages scale proportionally, with at least one MoE layer each.
/// UserError if the model has fewer layers.
Config first_layers(const Config& config, int64_t layers);

/// Measures and prints the table. UserError if a model does not fit into this machine's memory.
void run_cost_table(const Config& config, const CostTableOptions& options);

}  // namespace hero
