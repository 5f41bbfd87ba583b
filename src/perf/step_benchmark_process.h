#pragma once
// `hero bench step` in a separate process, because peak resident memory is per process. Writes JSON lines:
// {"step": n} after every step, then the samples.
#include "perf/step_benchmark.h"

namespace hero {

/// Implements `hero bench step`: measures in this process and writes the lines to stdout.
void write_steps(const Config& config, const StepOptions& options);

/// Runs write_steps in a child process and calls `on_step` after each step. RunError with the child's status
/// if it fails, after the child's own message on stderr.
StepCosts measure_in_child(const Config& config, const StepOptions& options,
                           const std::function<void()>& on_step);

}  // namespace hero
