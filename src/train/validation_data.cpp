#include "train/validation_data.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "data/loss_mask.h"
#include "io/error.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

struct NamedPrefix {
  std::string name;  // empty: from the prefix
  std::string prefix;
};

std::string without_suffix(std::string text, std::string_view suffix) {
  if (text.ends_with(suffix)) text.resize(text.size() - suffix.size());
  return text;
}

NamedPrefix parse(const std::string& entry) {
  const size_t equals = entry.find('=');
  // A path may contain '=' too; a name contains no '/'.
  if (equals == entry.npos || entry.find('/') < equals) return {"", entry};
  return {entry.substr(0, equals), entry.substr(equals + 1)};
}

std::string validation_half(const std::string& training) {
  const std::string bare = without_suffix(without_suffix(training, ".idx"), ".bin");
  const std::string half = without_suffix(bare, "-train") + "-valid";
  if (fs::exists(half + ".idx")) return half;
  throw UserError("eval.data: found no " + half + ".idx next to the training data " + training +
                  ", expected it, or prefixes in eval.data, or eval.every = 0");
}

std::vector<NamedPrefix> chosen_prefixes(const Config& config, const std::vector<std::string>& training) {
  std::vector<NamedPrefix> chosen;
  for (const std::string& entry : config.eval.data) {
    chosen.push_back(parse(entry));
    if (chosen.back().prefix.empty() || entry.starts_with('='))
      throw UserError("eval.data: found \"" + entry + "\", expected PREFIX or NAME=PREFIX");
  }
  if (!chosen.empty()) return chosen;
  for (const std::string& prefix : training) chosen.push_back({"", validation_half(prefix)});
  return chosen;
}

// Opens the loss mask that training would need, and counts what the loss is the mean of.
void count_targets(const Config& config, ValidationSet& set) {
  set.windows = set.reader.windows();
  if (config.eval.batches > 0)
    set.windows = std::min(set.windows, config.eval.batches * config.train.global_batch);
  set.targets = set.reader.targets(set.windows);
  if (!config.train.loss_mask) return;
  set.reader.open_mask();
  const int64_t all = set.targets;
  set.targets = set.reader.trained_targets(set.windows);
  if (set.targets > 0) return;
  throw UserError(loss_mask_prefix(set.reader.prefix()) + ".bin: found no mark among the " +
                  std::to_string(all) + " targets of a validation, expected one for train.loss_mask = true");
}

}  // namespace

std::deque<ValidationSet> open_validation_sets(const Config& config, const std::vector<std::string>& training,
                                               const std::optional<TokenFiles>& tokenizer) {
  std::deque<ValidationSet> sets;
  if (config.eval.every == 0) return sets;
  const auto chosen = chosen_prefixes(config, training);
  std::vector<TokenizerIdentity> tokenizers;
  if (tokenizer) tokenizers.push_back({tokenizer->tokenizer, tokenizer->tokenizer_sha256});
  try {
    for (const auto& [name, prefix] : chosen) {
      auto& set = sets.emplace_back(name, prefix, config.train.sequence, config.model.vocab_size);
      if (name.empty())
        set.name = without_suffix(fs::path(set.reader.prefix()).filename().string(), "-valid");
      count_targets(config, set);
      if (auto own = set.reader.tokenizer()) tokenizers.push_back(std::move(*own));
    }
    check_same_tokenizer(tokenizers);
  } catch (const UserError& error) {
    throw UserError("eval.data: " + std::string(error.what()));
  }
  for (size_t i = 0; i < sets.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (sets[i].name != sets[j].name) continue;
      throw UserError("eval.data: found two data sets named \"" + sets[i].name + "\" (" +
                      sets[j].reader.prefix() + ", " + sets[i].reader.prefix() +
                      "), expected distinct names, given as NAME=PREFIX");
    }
  }
  return sets;
}

}  // namespace hero
