#pragma once
// This process as training wants it.
#include "config/config.h"

namespace hero {

/// Threads: all cores or config.train.threads. Heap: pages of freed activations are kept, and CPU tensors
/// come from an allocator that finds a freed tensor's place again.
void prepare_process(const Config& config);

}  // namespace hero
