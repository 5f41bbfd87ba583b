#pragma once
// study.json: what a study consists of, for the page that reads its runs.
#include <nlohmann/json_fwd.hpp>

#include "study/runs.h"

namespace hero {

/// Steps, tokens of a step, seeds, and for every variant its name, `same_as` (or null), layers that its
/// window cuts, parameters, active parameters, operations of a step by the paper's count and exactly, of the
/// routers alone too, and its finished runs by seed (folders relative to OUT). docs/study.md describes the
/// file. UserError where no run is finished.
nlohmann::ordered_json describe_study(const StudyOptions& options, const std::vector<Variant>& variants,
                                      const std::vector<StudyRun>& runs);

}  // namespace hero
