#pragma once
// What a checkpoint holds beyond files: weights, moments, and where training stands.
#include <filesystem>
#include <memory>

#include "checkpoint/checkpoint.h"
#include "loss/loss.h"
#include "model/transformer.h"
#include "optim/adamw.h"

namespace hero {

/// Where a run stands after a step. Nothing else changes from step to step: random numbers are functions of
/// the seed and these.
struct TrainingState {
  int64_t step = 0;     ///< steps done
  int64_t tokens = 0;   ///< trained so far
  int64_t samples = 0;  ///< read from the data: the position in the global order
  BalanceState balance;
};

/// What a run was started with and must not change under it.
struct RunInputs {
  std::vector<std::string> data;  ///< the --data arguments
  std::string tokenizer;          ///< bytes of the SentencePiece model, empty without one
  int64_t eos = -1;
};

/// Views of model and optimizer as the files of RUN/checkpoints/step-*: fp32 values under Hugging Face's
/// names, moments as exp_avg.NAME and exp_avg_sq.NAME, the state as state.json. The tensors stay owned by
/// their modules.
CheckpointContents checkpoint_contents(const Transformer& model, AdamW& optimizer, const TrainingState& state,
                                       const RunInputs& inputs);

/// Reads moments and state, after verify_checkpoint. UserError as above.
TrainingState load_training_state(const std::filesystem::path& dir, Transformer& model, AdamW& optimizer);

/// The inputs recorded in a checkpoint.
RunInputs load_inputs(const std::filesystem::path& dir);

}  // namespace hero
