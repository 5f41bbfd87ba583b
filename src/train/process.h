#pragma once
// This process as training wants it.
#include "config/config.h"

namespace hero {

/// Threads: config.train.threads, or this process's share of the cores among `processes` on this machine.
/// Heap: pages of freed activations are kept, and CPU tensors come from an allocator that finds a freed
/// tensor's place again.
void prepare_process(const Config& config, int64_t processes = 1);

}  // namespace hero
