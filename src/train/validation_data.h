#pragma once
// The data sets of eval.data: names and token files.
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/sampler.h"

namespace hero {

struct ValidationSet {
  ValidationSet(std::string set_name, const std::string& prefix, int64_t sequence, int64_t vocab_size)
      : name(std::move(set_name)), reader(prefix, sequence, vocab_size) {}

  std::string name;
  SequentialReader reader;
  int64_t windows = 0;  ///< the first ones of the reader, within eval.batches
  int64_t targets = 0;  ///< of these windows; with train.loss_mask the marked ones, at least one
};

/// The entries of eval.data; without any, the validation halves next to the prefixes of the training data.
/// None if eval.every is 0. The default name is the prefix's file name without "-valid". `tokenizer`: of the
/// training data, if known. UserError beginning with eval.data for invalid or missing files, fewer than two
/// tokens, another tokenizer, duplicate names and, with train.loss_mask, data without a mask or marks.
std::deque<ValidationSet> open_validation_sets(const Config& config, const std::vector<std::string>& training,
                                               const std::optional<TokenFiles>& tokenizer);

}  // namespace hero
