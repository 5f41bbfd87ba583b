#pragma once
// Threads and heap of a training process.
#include "config/config.h"

namespace hero {

/// Threads: config.train.threads, or the available cores divided by the `processes` that share them. Heap:
/// keeps the pages of freed activations, and installs a CPU tensor allocator that reuses freed blocks of the
/// same size.
void prepare_process(const Config& config, int64_t processes = 1);

}  // namespace hero
