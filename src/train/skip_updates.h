#pragma once
// Which updates a run skips: train.skip_nonfinite and train.spike_skip.
#include "checkpoint/training_state.h"
#include "config/config.h"

namespace hero {

/// Decides on a step with this loss and gradient norm, and adds it to `state`. All ranks must pass the same
/// values. A value that is not finite is skipped unless train.skip_nonfinite updates in a row were; a finite
/// one if the loss or the norm exceeds its mean over the last 128 finite steps by more than train.spike_skip
/// standard deviations, once there are 64. As in OLMo-core, skipped spikes count among the last steps, so a
/// lasting change of the level ends the skipping.
bool skips_update(const TrainConfig& config, SkipState& state, double loss, double gradient_norm);

}  // namespace hero
