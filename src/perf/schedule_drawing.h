#pragma once
#include "perf/simulation.h"

namespace hero {

/// A simulated schedule as SVG: time on the x axis, one row per rank, one box per pass with the micro-batch
/// number, darker for later chunks of a rank, with start and end time as tooltip. `chunks`: of the whole
/// model. `title` is plain text.
std::string schedule_svg(const Schedule& schedule, const Simulation& simulation, int64_t chunks,
                         const std::string& title);

}  // namespace hero
