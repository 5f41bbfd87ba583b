#pragma once
// Arithmetic of one training step, for model FLOPs utilisation.
#include "config/config.h"

namespace hero {

/// Floating-point operations of forward and backward pass per trained token: 6 per weight that multiplies the
/// token (K of E experts, shared experts, attention, router, output projection), 4 per history weight (its
/// input needs no gradient), and the causal attention scores at this sequence length. The embedding look-up
/// multiplies nothing.
double training_flops_per_token(const Config& config);

}  // namespace hero
