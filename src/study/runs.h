#pragma once
// A study's training runs: which there are, which are finished, and how the others are brought to their end.
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
  int64_t threads = 0;  ///< of each run; 0: the cores' share
};

/// One variant under one seed, trained in OUT/seed-SEED/NAME.
struct StudyRun {
  std::string name;  ///< "seed-SEED/NAME"
  std::filesystem::path folder;
  Config config;
  std::vector<std::string> train, evaluate;  ///< the program's words; no words: no evaluation
};

/// All runs, seed by seed, so that every variant has as many as any other for most of the time. Seeds are
/// train.seed and those after it. Variants that are another's model have no runs of their own.
std::vector<StudyRun> study_runs(const StudyOptions& options, const std::vector<Variant>& variants);

/// UserError where a folder holds a run of another configuration; train.threads, train.device and
/// checkpoint.* may differ.
void check_present(const StudyRun& run);

/// Whether it is trained to its last step, and evaluated if it is to be.
bool finished(const StudyRun& run);

/// Brings all runs to their end, `jobs` of them at a time, with one progress line for all. Returns 0; 128 + n
/// after signal n, when every run has saved; or, after the runs beside it have come to their end, the status
/// of the first that failed.
int train_all(const std::vector<StudyRun>& runs, int64_t jobs);

}  // namespace hero
