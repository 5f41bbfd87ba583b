#include "study/study_data.h"

#include "data/phases.h"
#include "data/sampler.h"
#include "train/validation_data.h"

namespace hero {
namespace {

void check_variant_data(const Config& config, const StudyOptions& options) {
  const DataPlan plan = make_data_plan(config, options.data);
  std::vector<TokenizerIdentity> tokenizers;
  const auto open = [&](const std::string& prefix, bool needs_mask) {
    SequentialReader reader(prefix, config.train.sequence, config.model.vocab_size);
    if (needs_mask) reader.open_mask();
    if (!needs_mask) reader.open_mask_if_present();
    if (auto tokenizer = reader.tokenizer()) tokenizers.push_back(std::move(*tokenizer));
  };
  for (const auto& prefix : plan.prefixes) open(prefix, config.train.loss_mask);
  for (const auto& prefix : options.held_out) open(prefix, /*needs_mask=*/false);
  check_same_tokenizer(tokenizers);
  open_validation_sets(config, plan.prefixes, read_token_files(plan.prefixes.front()));
}

}  // namespace

void check_study_data(const StudyOptions& options, const std::vector<Variant>& variants) {
  for (const auto& variant : variants) check_variant_data(variant.config, options);
}

}  // namespace hero
