#include "data/sampler.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string_view>

#include "data/counter_random.h"
#include "data/loss_mask.h"
#include "io/error.h"

namespace hero {

namespace {

// The number before the first ':'; nullopt if there is none.
std::optional<double> leading_weight(std::string_view argument) {
  const std::size_t colon = argument.find(':');
  if (colon == argument.npos) return std::nullopt;
  double weight = 0;
  const auto [end, error] = std::from_chars(argument.data(), argument.data() + colon, weight);
  if (error != std::errc() || end != argument.data() + colon) return std::nullopt;
  return weight;
}

// Reads the metadata of a dataset and checks it against the dataset and the vocabulary. Without metadata,
// checks all tokens.
std::optional<TokenFiles> check_vocabulary(const IndexedDataset& data, int64_t vocab_size) {
  const auto files = read_token_files(data.prefix());
  if (!files) {
    if (vocab_size > 0) data.check_tokens(vocab_size);
    return files;
  }
  const auto split = files->splits.find(data.prefix().ends_with("-valid") ? "valid" : "train");
  if (split == files->splits.end() || split->second.tokens != data.tokens() ||
      split->second.documents != data.documents()) {
    throw UserError(data.prefix() + ".idx: " + std::to_string(data.tokens()) + " tokens in " +
                    std::to_string(data.documents()) +
                    " documents, which does not match its .json file; tokenize again");
  }
  if (vocab_size > 0 && files->vocab_size > vocab_size) {
    throw UserError(data.prefix() + ".bin: found vocabulary size " + std::to_string(files->vocab_size) +
                    ", expected at most model.vocab_size = " + std::to_string(vocab_size));
  }
  return files;
}

std::vector<double> weights_of(const std::vector<DataSource>& sources) {
  std::vector<double> weights;
  for (const auto& source : sources) weights.push_back(source.weight);
  return weights;
}

}  // namespace

std::vector<DataSource> parse_sources(const std::vector<std::string>& arguments) {
  std::vector<DataSource> sources;
  std::size_t weighted = 0;
  for (const auto& argument : arguments) {
    const auto weight = leading_weight(argument);
    weighted += weight.has_value();
    if (weight && !(*weight > 0 && std::isfinite(*weight))) {
      throw UserError("--data " + argument + ": expected a weight above 0 before the ':'");
    }
    sources.push_back({weight ? argument.substr(argument.find(':') + 1) : argument, weight.value_or(1)});
    if (sources.back().prefix.empty())
      throw UserError("--data \"" + argument + "\": expected PREFIX or WEIGHT:PREFIX");
  }
  if (sources.empty()) throw UserError("--data: found nothing, expected PREFIX or WEIGHT:PREFIX");
  if (weighted != 0 && weighted != sources.size()) {
    throw UserError("--data: " + std::to_string(weighted) + " of " + std::to_string(sources.size()) +
                    " sources have a weight, expected all (WEIGHT:PREFIX) or none");
  }
  return sources;
}

BlendedSampler::BlendedSampler(const std::vector<double>& weights) : counts_(weights.size()) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights)
    units_.push_back(std::max<int64_t>(1, std::llround(weight / sum * 0x1p32)));
  total_ = std::accumulate(units_.begin(), units_.end(), int64_t{0});
}

BlendedSampler::Choice BlendedSampler::at(int64_t position) {
  if (position < position_) {
    std::fill(counts_.begin(), counts_.end(), 0);
    position_ = 0;
  }
  while (position_ < position) next();
  return next();
}

BlendedSampler::Choice BlendedSampler::next() {
  using Wide = __int128;
  ++position_;
  int64_t best = -1;
  for (std::size_t k = 0; k < units_.size(); ++k) {
    const bool below_quota = Wide(counts_[k]) * total_ < Wide(units_[k]) * position_;
    if (!below_quota) continue;
    if (best < 0 || Wide(counts_[k] + 1) * units_[best] < Wide(counts_[best] + 1) * units_[k])
      best = static_cast<int64_t>(k);
  }
  return {best, counts_[best]++};
}

TokenStream::TokenStream(const std::vector<DataSource>& sources, int64_t sequence, uint64_t seed,
                         int64_t vocab_size, int64_t eos, const PackOptions& options)
    : sequence_(sequence), blend_(weights_of(sources)), counted_blend_(blend_) {
  for (std::size_t k = 0; k < sources.size(); ++k) {
    const auto data = std::make_shared<const IndexedDataset>(resolve_prefix(sources[k].prefix, "train"));
    auto files = check_vocabulary(*data, vocab_size);
    if (files && token_files_ && files->tokenizer_sha256 != token_files_->tokenizer_sha256) {
      throw UserError(data->prefix() + ".bin: tokenized with a different tokenizer (" + files->tokenizer +
                      ") than the previous sources (" + token_files_->tokenizer + ")");
    }
    if (files) token_files_ = std::move(files);
    sets_.emplace_back(data, sequence, counter_bits(seed, k), eos, options.pack,
                       options.loss_mask ? open_loss_mask(*data) : nullptr);
    prefixes_.push_back(data->prefix());
  }
}

void TokenStream::read(int64_t first_sample, int64_t count, const SampleOut& out) {
  SampleOut next = out;
  const auto advance = [&](int64_t*& array) {
    if (array) array += sequence_ + 1;
  };
  for (int64_t i = 0; i < count; ++i) {
    const auto choice = blend_.at(first_sample + i);
    sets_[choice.source].sample(choice.index, next);
    advance(next.tokens);
    advance(next.starts);
    advance(next.trained);
  }
}

std::vector<int64_t> TokenStream::trained_targets(int64_t first_sample, int64_t count, int64_t modules,
                                                  bool own_document) {
  std::vector<int64_t> trained(sequence_ + 1), starts(sequence_ + 1), sums(modules + 1);
  for (int64_t i = 0; i < count; ++i) {
    const auto choice = counted_blend_.at(first_sample + i);
    sets_[choice.source].sample(choice.index,
                                {.tokens = nullptr, .starts = starts.data(), .trained = trained.data()});
    for (int64_t k = 0; k <= modules; ++k) {
      for (int64_t t = 0; t + k < sequence_; ++t)
        sums[k] += trained[t + k + 1] != 0 && (!own_document || starts[t + k] == starts[t]);
    }
  }
  return sums;
}

std::vector<std::string> TokenStream::summary() {
  std::vector<std::string> lines;
  for (std::size_t k = 0; k < sets_.size(); ++k) {
    const auto found = sets_[k].summary();
    const double share = static_cast<double>(found.split) / static_cast<double>(found.documents);
    char line[128];
    std::snprintf(line, sizeof line, ": %ld of %ld documents (%.1f%%) are split, padding %.1f%%", found.split,
                  found.documents, 100 * share, 100 * found.padding);
    lines.push_back(prefixes_[k] + line);
  }
  return lines;
}

SequentialReader::SequentialReader(const std::string& prefix, int64_t sequence, int64_t vocab_size)
    : data_(resolve_prefix(prefix, "valid")),
      sequence_(sequence),
      token_files_(check_vocabulary(data_, vocab_size)) {
  if (data_.tokens() < 2) {
    throw UserError(data_.prefix() + ".bin: " + std::to_string(data_.tokens()) +
                    " tokens, expected at least 2");
  }
}

int64_t SequentialReader::read(int64_t window, int64_t* out) const {
  const int64_t begin = window * sequence_;
  const int64_t count = std::min(sequence_ + 1, data_.tokens() - begin);
  data_.read(begin, count, out);
  std::fill(out + count, out + sequence_ + 1, 0);
  return count - 1;
}

std::optional<TokenizerIdentity> SequentialReader::tokenizer() const {
  if (!token_files_) return std::nullopt;
  return TokenizerIdentity{prefix() + ".bin (" + token_files_->tokenizer + ")",
                           token_files_->tokenizer_sha256};
}

}  // namespace hero
