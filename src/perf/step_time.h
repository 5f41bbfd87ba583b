#pragma once
// Predicted time of a training step from two rates of a machine: FLOP/s for matrix products, memory bandwidth
// for everything else.
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

/// Throughput per second.
struct Rates {
  double operations = 0;  ///< of matrix products in train.dtype
  double bytes = 0;       ///< read and written; 0: unknown, only matrix products are predicted
};

/// Measures train.device with train.threads threads: gemm_flops_per_second, and the bandwidth of copying 256
/// MiB (GPU: 2 GiB), read plus written.
Rates measure_rates(const Config& config);

struct TimeItem {
  std::string name;
  double seconds = 0;
};

/// By category: the matrix products of model_costs (the forward ones twice with train.recompute), Muon's,
/// then activations and their gradients, weights and their gradients, and the optimizer as bytes.
std::vector<TimeItem> step_time(const Config& config, const Rates& rates);

}  // namespace hero
