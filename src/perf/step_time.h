#pragma once
// Seconds of a training step from two rates of a machine: matrix products by their operations, everything
// else by the bytes that pass through memory.
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

/// What a machine does in a second.
struct Rates {
  double operations = 0;  ///< of matrix products in the run's type
  double bytes = 0;       ///< read and written; 0: not known, and nothing but products is predicted
};

/// Of train.device, with as many threads as the run: gemm_rate, and copying 256 MiB (a GPU: 2 GiB), read and
/// written.
Rates measure_rates(const Config& config);

struct TimePart {
  std::string name;
  double seconds = 0;
};

/// By part: the products of model_parts (the forward ones twice with train.recompute), then activations and
/// their gradients, weights and their gradients, and the optimizer as bytes.
std::vector<TimePart> step_time(const Config& config, const Rates& rates);

}  // namespace hero
