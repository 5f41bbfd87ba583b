#pragma once
// Contents of a checkpoint: weights, moments and training state.
#include <filesystem>
#include <map>
#include <memory>

#include "checkpoint/state_file.h"
#include "checkpoint/writer.h"
#include "data/fingerprint.h"
#include "loss/loss.h"
#include "model/transformer.h"
#include "optim/parameter_shard.h"

namespace hero {

/// State of a run after a step. Complete: random numbers are functions of the seed and these.
struct TrainingState {
  int64_t step = 0;     ///< completed steps
  int64_t tokens = 0;   ///< trained so far
  int64_t samples = 0;  ///< read so far: the position in the global sample order
  BalanceState balance;
  SkipState skips;
  ValidationState validation;
};

/// Inputs of a run that must not change when it resumes; token files only with --data-changed.
struct RunInputs {
  std::vector<std::string> data;                       ///< the --data arguments
  TokenFileDigests token_files;                        ///< empty: saved before they were recorded
  TokenFileDigests validation_files;                   ///< of the validation data; empty: none, or as above
  std::string tokenizer;                               ///< contents of the tokenizer file; empty: none
  std::map<std::string, std::string> tokenizer_files;  ///< for a model folder: see tokenizer_export.h
  int64_t eos = -1;
};

/// What a rank saves: the optimizer's parameter shards (see add_parameter_shards), state.json and the files
/// of a model folder. The tensors alias those of the modules. `buffers`: include the model's buffers, which
/// may be replicated across ranks; one rank saves them.
CheckpointContents checkpoint_contents(const Transformer& model, const std::vector<ParameterShard>& shards,
                                       const TrainingState& state, const RunInputs& inputs,
                                       bool buffers = true);

/// Reads moments, state, and the fp32 values that exist only in the optimizer's shards. Call after
/// newest_intact_checkpoint; load_weights reads the other weights. UserError for a mismatch with the model.
TrainingState load_training_state(const std::filesystem::path& dir, Transformer& model,
                                  const std::vector<ParameterShard>& shards);

/// The inputs recorded in a checkpoint.
RunInputs load_inputs(const std::filesystem::path& dir);

}  // namespace hero
