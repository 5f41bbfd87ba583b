#pragma once
#include <cstdint>

#include "config/config.h"

namespace hero {

/// The learning rate of `step`, from 1 to `steps`: linear warmup over warmup_steps, then config.schedule. A
/// decay goes from lr to min_lr, which it reaches after its last step; later steps stay at min_lr.
///
/// - cosine, linear: from the end of the warmup, over decay_steps steps; 0: until `steps`.
/// - wsd: lr, then a decay of shape decay_shape in the last decay_steps steps; 0: in the last tenth of
///   `steps`, rounded up, but not before the end of the warmup.
/// - constant: lr.
double learning_rate(const OptimConfig& config, int64_t step, int64_t steps);

}  // namespace hero
