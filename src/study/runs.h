#pragma once
// The training runs of a study: list, state, and execution in child processes.
#include <filesystem>
#include <string>
#include <vector>

#include "study/variants.h"

namespace hero {

struct StudyOptions {
  std::filesystem::path config, out;
  std::vector<std::string> variants, flags, data, held_out;
  int64_t seeds = 1;
  int64_t jobs = 1;
  int64_t threads = 0;  ///< per run; 0: cores / jobs
};

/// One variant under one seed, trained in OUT/seed-SEED/NAME.
struct StudyRun {
  std::string name;  ///< "seed-SEED/NAME"
  std::filesystem::path folder;
  Config config;
  std::vector<std::string> train, evaluate;  ///< command-line arguments of hero; empty: no evaluation
  /// For every held-out data set the hashes of its files, which identify an evaluation of them.
  std::vector<std::vector<std::string>> held_out;
};

/// All runs in order of seeds, so that variants progress evenly. Seeds start at train.seed. Variants with
/// same_as have no runs of their own. UserError if a held-out file cannot be read.
std::vector<StudyRun> study_runs(const StudyOptions& options, const std::vector<Variant>& variants);

/// UserError if the folder contains a run with a different configuration; train.threads, train.device and
/// checkpoint.* may differ.
void check_existing_run(const StudyRun& run);

/// Whether the run is trained to its last step and, if requested, evaluated.
bool finished(const StudyRun& run);

/// Completes all runs, `jobs` at a time, with one progress line. Returns 0; 128 + n after signal n, once
/// every run has saved a checkpoint; or the status of the first failed run, once the active runs have
/// finished.
int train_all(const std::vector<StudyRun>& runs, int64_t jobs);

}  // namespace hero
