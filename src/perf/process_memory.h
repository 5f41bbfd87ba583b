#pragma once
// Resident memory of `hero train` at its peak, as peak_memory_mib of its metrics says.
#include "perf/memory.h"

namespace hero {

/// By part: what a lone device holds at the step's fullest moment, what the CPU's operators take for
/// themselves then, and the process with its libraries.
std::vector<MemoryPart> process_memory(const Config& config);

}  // namespace hero
