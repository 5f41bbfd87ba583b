#pragma once
// What a checkpoint holds beyond files: weights, moments, and where training stands.
#include <filesystem>
#include <map>
#include <memory>

#include "checkpoint/writer.h"
#include "loss/loss.h"
#include "model/transformer.h"
#include "optim/piece.h"

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
  std::vector<std::string> data;                       ///< the --data arguments
  std::string tokenizer;                               ///< bytes of the tokenizer file, empty without one
  std::map<std::string, std::string> tokenizer_files;  ///< for a model folder: see tokenizer_export.h
  int64_t eos = -1;
};

/// What a process saves of model and optimizer: the optimizer's pieces (see add_pieces), the state as
/// state.json, and what makes the folder a model folder. The tensors stay owned by their modules. `buffers`:
/// also the model's buffers, which several ranks may hold alike and one saves.
CheckpointContents checkpoint_contents(const Transformer& model, const std::vector<Piece>& pieces,
                                       const TrainingState& state, const RunInputs& inputs,
                                       bool buffers = true);

/// Reads moments and state, and of weights the fp32 values that only the optimizer's pieces hold, after
/// verify_checkpoint; load_weights reads the rest. UserError as above.
TrainingState load_training_state(const std::filesystem::path& dir, Transformer& model,
                                  const std::vector<Piece>& pieces);

/// The inputs recorded in a checkpoint.
RunInputs load_inputs(const std::filesystem::path& dir);

}  // namespace hero
