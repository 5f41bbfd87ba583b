#pragma once
// Bytes that one device sends in an optimizer step.
#include "config/config.h"
#include "perf/memory.h"

namespace hero {

/// By kind: gradients and weights over data ranks (reduce-scatter, all-gather), activations and their
/// gradients over the busiest pipeline boundary, routing history over it (where layers behind it see layers
/// before it), rows of experts (all-to-all, forward and backward). Kinds that a layout does not have are 0.
std::vector<MemoryPart> device_traffic(const Config& config, const Layout& layout);

}  // namespace hero
