#include "study/study_data.h"

#include <deque>

#include "checkpoint/training_state.h"
#include "data/fingerprint.h"
#include "data/phases.h"
#include "data/sampler.h"
#include "hf/resolve.h"
#include "io/error.h"
#include "train/run_config.h"
#include "train/validation_data.h"

namespace hero {
namespace {

void check_variant_data(const Config& config, const StudyOptions& options) {
  const DataPlan plan = make_data_plan(config, options.data);
  std::deque<SequentialReader> readers;
  // Runs check the vocabulary of their training data at their start, which may take long.
  for (const auto& prefix : plan.prefixes) {
    readers.emplace_back(prefix, config.train.sequence, /*vocab_size=*/0);
    if (config.train.loss_mask) readers.back().open_mask();
  }
  for (const auto& prefix : options.held_out)
    readers.emplace_back(prefix, config.train.sequence, config.model.vocab_size).open_mask_if_present();
  std::vector<TokenizerIdentity> tokenizers;
  for (const auto& reader : readers) {
    if (auto tokenizer = reader.tokenizer()) tokenizers.push_back(std::move(*tokenizer));
  }
  check_same_tokenizer(tokenizers);
  open_validation_sets(config, plan.prefixes, first_token_files(plan.prefixes));
}

}  // namespace

void check_study_data(const StudyOptions& options, const std::vector<Variant>& variants) {
  for (const auto& variant : variants) check_variant_data(variant.config, options);
}

void check_existing_data(const StudyOptions& options, const StudyRun& run) {
  const auto checkpoints = list_checkpoints(run.folder);
  if (checkpoints.empty()) return;
  const auto& checkpoint = checkpoints.back();
  const RunInputs inputs = load_inputs(checkpoint);
  if (run.config.data.phases.empty() && inputs.data != options.data) {
    throw UserError("--data: found " + comma_separated(options.data) + ", expected " +
                    comma_separated(inputs.data) + ", as when " + run.folder.string() + " was started");
  }
  const DataPlan plan = make_data_plan(run.config, options.data);
  const auto changes =
      changed_token_files(digest_token_files(plan.prefixes, run.config.train.loss_mask), inputs.token_files);
  if (changes.empty()) return;
  throw UserError(changes.begin()->second + " as in " + (checkpoint / "state.json").string() +
                  "; restore the file, or use a different --out");
}

}  // namespace hero
