#pragma once
// The checkpoints of a run that trains: when a save failed, which one is the best, and what to do after a
// failure of the run.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/training_state.h"
#include "checkpoint/writer.h"
#include "optim/optimizer.h"
#include "train/run_folder.h"
#include "train/run_output.h"

namespace hero {

class RunCheckpoints {
 public:
  /// All arguments must outlive this object. `state`: that of the checkpoint which the run resumes from.
  /// `world`: null for a single process. `output`: null on ranks other than 0.
  RunCheckpoints(const Run& run, std::filesystem::path folder, const World* world, const Transformer& model,
                 const Optimizer& optimizer, TrainingState& state, RunOutput* output);

  /// Saves the state unless it is saved. `wait`: returns when the checkpoint exists; otherwise training
  /// continues while it is written. A failed save is tried again at the next interval; RunError after two in
  /// a row. Collective: all ranks decide alike.
  void save(bool wait);
  /// Saves the state even if it is saved: a repeated validation has changed it.
  void save_again();
  /// Waits for the last save, with the same tolerance.
  void finish();
  /// Whether the state is saved, or being saved.
  bool is_saved() const { return saved_ == state_.step; }

  /// The loss that the validation after `step` found.
  void set_validation(int64_t step, double loss) { validated_ = {step, loss}; }
  /// Checkpoints up to this step have weights with a finite loss.
  void mark_verified(int64_t step) { writer_.mark_verified(step); }

  /// Writes best.json and a line about the best checkpoint to stderr, if there is one.
  void report_best() const;
  /// The end of the message of a run that fails: the newest verified checkpoint and how to continue from it.
  /// Waits for the last save, and reports its failure.
  std::string advice_after_failure();

 private:
  void update_best();
  void tolerate_one_failure(const std::function<void()>& work);
  std::string resume_advice() const;

  const Run& run_;
  std::filesystem::path folder_;
  const World* world_;
  const Transformer& model_;
  const Optimizer& optimizer_;
  TrainingState& state_;
  RunOutput* output_;
  CheckpointWriter writer_;
  std::pair<int64_t, double> validated_ = {-1, 0};  // step and loss of the last validation
  BestCheckpoint best_before_save_;
  int64_t saved_ = -1;
};

}  // namespace hero
