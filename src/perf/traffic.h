#pragma once
// Bytes that one device sends in an optimizer step.
#include "config/config.h"
#include "perf/memory.h"

namespace hero {

/// By kind: gradients and weights over data ranks (reduce-scatter, all-gather), activations and their
/// gradients over the busiest pipeline boundary, embedded tokens and their gradients between the first and
/// the last stage (multi-token prediction), routing history over a boundary (if later layers see earlier
/// ones), rows dispatched to experts (all-to-all, forward and backward). Unused kinds are 0.
std::vector<MemoryItem> device_traffic(const Config& config, const Layout& layout);

}  // namespace hero
