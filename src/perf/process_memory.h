#pragma once
// Peak resident memory of `hero train`, peak_memory_mib in its metrics.
#include "perf/memory.h"

namespace hero {

/// By category: tensors on a single device at the peak of a step, workspace of CPU operators at that time,
/// and the process with its libraries.
std::vector<MemoryItem> process_memory(const Config& config);

}  // namespace hero
