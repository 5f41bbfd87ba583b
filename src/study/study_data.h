#pragma once
// The token files of a study, opened before it trains.
#include "study/runs.h"

namespace hero {

/// UserError for training, validation or held-out files of any variant that a run or its evaluation would
/// reject after other runs have trained: missing or invalid files and masks, and different tokenizers.
void check_study_data(const StudyOptions& options, const std::vector<Variant>& variants);

/// UserError if the run was started with other data: with other --data, or with files that have changed since
/// its last checkpoint.
void check_existing_data(const StudyOptions& options, const StudyRun& run);

}  // namespace hero
