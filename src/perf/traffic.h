#pragma once
// Bytes that one device sends in an optimizer step.
#include "config/config.h"
#include "perf/memory.h"

namespace hero {

/// By kind, each of the device that sends most: gradients and weights over data ranks (reduce-scatter,
/// all-gather), activations and their gradients to other pipeline stages (with the mass of the coupling
/// loss), embedded tokens to the last stage or their gradients to the first (multi-token prediction), routing
/// history to the next stage (if later layers see earlier ones), rows dispatched to experts (all-to-all,
/// forward, again with recomputation, and backward). Unused kinds are 0.
std::vector<MemoryItem> device_traffic(const Config& config, const Layout& layout);

}  // namespace hero
