#pragma once
// A run without a model: what it takes to see how processes end when one of them is lost.
#include <cstdint>
#include <functional>

namespace hero {

/// `steps` steps of collectives over all ranks, as this process's environment has them; `after` is called
/// behind each.
void loop_over_collectives(double timeout, int64_t steps, const std::function<void(int64_t step)>& after);

}  // namespace hero
