#include "data/sampler.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <numeric>

#include "data/counter_random.h"
#include "data/loss_mask.h"
#include "io/error.h"

namespace hero {

namespace {

// Reads the metadata of a dataset and checks it against the dataset and the vocabulary. Without metadata,
// checks all tokens; with metadata, those that are read.
std::optional<TokenFiles> check_vocabulary(IndexedDataset& data, int64_t vocab_size) {
  const auto files = read_token_files(data.prefix());
  if (!files) {
    if (vocab_size > 0) data.check_tokens(vocab_size);
    return files;
  }
  data.check_reads(vocab_size);
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

void check_same_vocabulary(const std::string& prefix, const TokenFiles& files, const TokenFiles& first) {
  if (files.tokenizer_sha256 != first.tokenizer_sha256) {
    throw UserError(prefix + ".bin: tokenized with a different tokenizer (" + files.tokenizer +
                    ") than the previous sources (" + first.tokenizer + ")");
  }
  if (files.eos_id != first.eos_id) {
    throw UserError(prefix + ".bin: documents end with EOS token " + std::to_string(files.eos_id) + " (" +
                    files.tokenizer + "), expected " + std::to_string(first.eos_id) +
                    " as in the previous sources (" + first.tokenizer + ")");
  }
}

}  // namespace

TokenStream::TokenStream(const DataPlan& plan, int64_t sequence, uint64_t seed, int64_t vocab_size,
                         int64_t eos, const PackOptions& options)
    : sequence_(sequence), sampler_(plan), counted_sampler_(plan) {
  for (std::size_t k = 0; k < plan.prefixes.size(); ++k) {
    const auto data = std::make_shared<IndexedDataset>(plan.prefixes[k]);
    auto files = check_vocabulary(*data, vocab_size);
    if (files && token_files_) {
      check_same_vocabulary(data->prefix(), *files, *token_files_);
    } else if (files) {
      token_files_ = std::move(files);
    }
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
    const auto choice = sampler_.at(first_sample + i);
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
    const auto choice = counted_sampler_.at(first_sample + i);
    sets_[choice.source].sample(
        choice.index,
        {.tokens = nullptr, .starts = own_document ? starts.data() : nullptr, .trained = trained.data()});
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

std::vector<int64_t> TokenStream::epoch_samples() const {
  std::vector<int64_t> samples;
  for (const PackedDataset& set : sets_) samples.push_back(set.epoch_samples());
  return samples;
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

int64_t SequentialReader::read_padded(const IndexedDataset& data, int64_t window, int64_t* out) const {
  const int64_t begin = window * sequence_;
  const int64_t count = std::min(sequence_ + 1, data.tokens() - begin);
  data.read(begin, count, out);
  std::fill(out + count, out + sequence_ + 1, 0);
  return count - 1;
}

int64_t SequentialReader::read(int64_t window, int64_t* out) const { return read_padded(data_, window, out); }

void SequentialReader::read_starts(int64_t window, int64_t* out) const {
  const int64_t begin = window * sequence_, end = std::min(begin + sequence_ + 1, data_.tokens());
  int64_t first = 0;
  for (int64_t document = data_.document_at(begin); first < end - begin; ++document) {
    const int64_t next = std::min(data_.document_begin(document + 1), end) - begin;
    std::fill(out + first, out + next, first);
    first = next;
  }
  std::fill(out + first, out + sequence_ + 1, first);
}

void SequentialReader::open_mask() { mask_ = open_loss_mask(data_); }

bool SequentialReader::open_mask_if_present() {
  if (std::filesystem::exists(loss_mask_prefix(data_.prefix()) + ".idx")) open_mask();
  return has_mask();
}

void SequentialReader::read_mask(int64_t window, int64_t* out) const { read_padded(*mask_, window, out); }

int64_t SequentialReader::trained_targets(int64_t windows) const {
  std::vector<int64_t> mask(sequence_ + 1);
  int64_t sum = 0;
  for (int64_t window = 0; window < windows; ++window) {
    read_mask(window, mask.data());
    sum += std::ranges::count_if(mask.begin() + 1, mask.end(), [](int64_t mark) { return mark != 0; });
  }
  return sum;
}

std::optional<TokenizerIdentity> SequentialReader::tokenizer() const {
  if (!token_files_) return std::nullopt;
  return TokenizerIdentity{prefix() + ".bin (" + token_files_->tokenizer + ")",
                           token_files_->tokenizer_sha256};
}

}  // namespace hero
