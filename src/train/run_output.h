#pragma once
// What rank 0 writes while a run trains: the logs in the run folder, and lines about the run on stderr.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/step_progress.h"
#include "train/balance_warning.h"
#include "train/run_folder.h"
#include "train/run_log.h"
#include "train/step.h"

namespace hero {

class RunOutput {
 public:
  /// Drops log entries after `step`, the state's. The arguments must outlive this object. `world`: null for a
  /// single process.
  RunOutput(const Run& run, std::filesystem::path folder, const World* world, int64_t step);

  /// The lines before the first step, which follows `step`. `gemm_flops`: the GEMM throughput of this rank.
  void start(int64_t step, double gemm_flops);
  /// A line about the data phase that begins with the step, if one does. start() describes the first one.
  void announce_phase(int64_t step);
  /// Logs a step and shows it in the progress line.
  void write(const StepRecord& record, const StepSums& sums);
  /// Shows the fraction of a validation after `step` that is done, once it takes longer than some seconds.
  std::function<void(double)> validation_progress(int64_t step);
  /// Adds the validation of the last logged step, which a stop signal had interrupted.
  void add_validation(int64_t step, const ValidationLosses& losses);
  /// Ends the progress line.
  void finish();
  /// Writes warnings on lines of their own.
  void warn(const std::vector<std::string>& lines);

 private:
  void print_start(int64_t step, double gemm_flops) const;

  const Run& run_;
  std::filesystem::path folder_;
  const World* world_;
  RunLog log_;
  BalanceWarning balance_warning_;
  std::unique_ptr<StepProgress> progress_;  // from start() on
  std::optional<double> validation_loss_;   // the last one
};

}  // namespace hero
