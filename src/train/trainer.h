#pragma once
// The training loop of a process: steps, validations and saves until the run's last step, a stop signal or a
// failure.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/training_state.h"
#include "optim/optimizer.h"
#include "train/run_checkpoints.h"
#include "train/run_folder.h"
#include "train/run_output.h"
#include "train/step.h"
#include "train/validation.h"

namespace hero {

class Trainer {
 public:
  /// `world`: null for a single process. `model`: this rank's part with loaded weights, because the optimizer
  /// keeps fp32 values only of its own shards.
  Trainer(Run run, const std::filesystem::path& folder, const World* world,
          std::unique_ptr<Transformer> model);
  Trainer(const Trainer&) = delete;

  /// Trains, saves and returns the exit status; see train().
  int run();

 private:
  /// One optimizer step over the global batch. false if a stop signal ended it between micro-batches: the
  /// state is that of the preceding step.
  bool step();
  /// This data rank's micro-batch i of a step.
  MicroBatch read(int64_t step, int64_t i);
  int64_t step_tokens() const { return run_.config.train.global_batch * run_.config.train.sequence; }
  /// Losses on the validation data. nullopt if a stop signal ended the validation: the resumed run repeats
  /// it.
  std::optional<ValidationLosses> validate();
  /// The validation of the checkpoint's step, which a stop signal had interrupted.
  void repeat_validation();
  [[noreturn]] void fail(std::string what);

  Run run_;
  std::filesystem::path folder_;
  const World* world_;
  Mesh mesh_;
  std::unique_ptr<Transformer> model_;
  Optimizer optimizer_;
  TrainingState state_;
  TrainStep step_;
  std::unique_ptr<RunOutput> output_;  // null on ranks other than 0
  RunCheckpoints checkpoints_;
  std::unique_ptr<Validation> validation_;  // with eval.every
  double gemm_flops_per_second_;            // of this rank's device
  double gemm_seconds_per_token_;           // of all ranks together, at that throughput
  double busy_seconds_ = 0;                 // of the last step, without waiting for other ranks
  int stop_ = 0;                            // signal that stops all ranks after this step
};

}  // namespace hero
