#pragma once
// `hero bench step` in a process of its own, because the highest resident memory is a process's. It writes
// JSON lines: {"step": n} after every step, and in the end the samples.
#include "perf/step_benchmark.h"

namespace hero {

/// What `hero bench step` does: measures here, writes the lines to stdout.
void write_steps(const Config& config, const StepOptions& options);

/// Runs the same in a child process of this program; `on_step` hears of each of its steps. RunError with the
/// child's status where it fails; its own message is on stderr by then.
StepCosts measure_in_child(const Config& config, const StepOptions& options,
                           const std::function<void()>& on_step);

}  // namespace hero
