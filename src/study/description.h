#pragma once
// study.json: the description of a study, for the report page.
#include <nlohmann/json_fwd.hpp>

#include "study/runs.h"

namespace hero {

/// Steps, tokens per step, seeds, and for every variant its name, `same_as` (or null), layers that its window
/// truncates, parameters, active parameters, operations per step by the paper's count and exactly, in total
/// and of the routers, and its finished runs by seed (folders relative to OUT). docs/study.md describes the
/// file. UserError if no run is finished.
nlohmann::ordered_json describe_study(const StudyOptions& options, const std::vector<Variant>& variants,
                                      const std::vector<StudyRun>& runs);

}  // namespace hero
