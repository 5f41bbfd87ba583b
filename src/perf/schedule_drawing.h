#pragma once
#include "perf/simulation.h"

namespace hero {

/// A simulated schedule as SVG: time to the right, ranks below each other, a box a pass with the
/// micro-batch's number, darker for later chunks of a rank; every box tells its times where the mouse rests
/// on it. `chunks`: of the whole model. `title` is plain text.
std::string schedule_svg(const Schedule& schedule, const Simulation& simulation, int64_t chunks,
                         const std::string& title);

}  // namespace hero
