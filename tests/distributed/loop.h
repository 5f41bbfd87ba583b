#pragma once
// A run without a model, for tests of process failures.
#include <cstdint>
#include <functional>

namespace hero {

/// Runs `steps` steps of collectives over all ranks of the environment's launch settings. Calls `after` after
/// each step.
void loop_over_collectives(double timeout, int64_t steps, const std::function<void(int64_t step)>& after);

}  // namespace hero
