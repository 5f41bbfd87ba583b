#pragma once
// The data of a run that starts, resumes or branches: --data or data.phase, and the token files.
#include "data/phases.h"
#include "train/run_folder.h"

namespace hero {

struct RunData {
  DataPlan plan;
  bool changed = false;  ///< the phases after the checkpoint are not those of the checkpoint
};

/// The run's data, from its options and those of its checkpoint, which run.inputs has. Records --data in
/// run.inputs. UserError if there is none, if both are given, or if it changes what completed steps read.
RunData find_run_data(const TrainOptions& options, Run& run);

/// Replaces the recorded digests of the token files. UserError for a file that changed since the checkpoint.
void check_token_files(const TrainOptions& options, const RunData& data, Run& run);

/// The same for the files of run.validation; changes are not errors, because nothing is trained on them.
/// Other validation data than before is a change of options, not of files.
void check_validation_files(Run& run);

}  // namespace hero
