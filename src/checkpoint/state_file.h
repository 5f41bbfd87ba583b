// state.json of a checkpoint: the training state that is not a tensor. No tensors, so that the fuzzers link
// it.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_hash.h"

namespace hero {

/// Skipped updates (see train/skip_updates.h).
struct SkipState {
  int64_t skipped = 0;                         ///< so far
  int64_t nonfinite_in_a_row = 0;              ///< up to the last step
  std::vector<double> losses, gradient_norms;  ///< of the last finite steps; only with train.spike_skip
};

/// The checkpoint with the lowest validation loss.
struct BestCheckpoint {
  int64_t step = -1;  ///< -1: none
  double loss = 0;
  int64_t previous_step = -1;  ///< the best one before, kept until this one is verified
};

/// Validation during training (see train/validation.h).
struct ValidationState {
  bool interrupted = false;  ///< a stop signal ended the validation of the last step
  BestCheckpoint best;
};

/// What a resumed run reads from state.json, which has more keys for information.
struct StateFile {
  int64_t step = 0, tokens = 0, samples = 0;  ///< see TrainingState
  std::vector<double> balance_shares;         ///< row-major [L, E]
  SkipState skips;
  ValidationState validation;
  std::vector<std::string> data;                       ///< the --data arguments
  std::map<std::string, FileDigest> token_files;       ///< see data/fingerprint.h; empty in old checkpoints
  std::map<std::string, FileDigest> validation_files;  ///< the same of validation data
  int64_t eos = -1;
};

nlohmann::ordered_json skip_state_json(const SkipState& skips);
nlohmann::ordered_json validation_state_json(const ValidationState& validation);

/// Reads the contents of state.json; `file`: its name in messages. UserError naming the key, the found and
/// the expected value.
StateFile parse_state(std::string_view text, const std::string& file);

}  // namespace hero
