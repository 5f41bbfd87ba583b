#include "data/packed_dataset.h"

#include <algorithm>

#include "data/counter_random.h"
#include "io/error.h"

namespace hero {

PackedDataset::PackedDataset(std::shared_ptr<const IndexedDataset> tokens, int64_t sequence, uint64_t seed,
                             int64_t eos)
    : data_(std::move(tokens)), sequence_(sequence), eos_(eos), seed_(seed), needs_eos_(data_->documents()) {
  int64_t count = data_->tokens();
  for (int64_t d = 0; eos_ >= 0 && d < data_->documents(); ++d) {
    if (data_->document_tokens(d) == 0) continue;
    int64_t last;
    data_->read(data_->document_begin(d + 1) - 1, 1, &last);
    needs_eos_[d] = last != eos_;
    count += needs_eos_[d];
  }
  samples_ = std::max<int64_t>(count - 1, 0) / sequence_;
  if (samples_ == 0) {
    throw UserError(data_->prefix() + ".bin: " + std::to_string(count) + " tokens in " +
                    std::to_string(data_->documents()) + " documents, expected at least " +
                    std::to_string(sequence_ + 1) + " (one sample of train.sequence = " +
                    std::to_string(sequence_) + " and its last target)");
  }
}

int64_t PackedDataset::document_length(int64_t document) const {
  return data_->document_tokens(document) + needs_eos_[document];
}

const PackedDataset::Epoch& PackedDataset::epoch(int64_t number) {
  Epoch& epoch = epochs_[number % 2];
  if (epoch.number == number) return epoch;
  const uint64_t key = counter_bits(seed_, static_cast<uint64_t>(number));
  epoch.documents = counter_permutation(data_->documents(), key);
  epoch.samples = counter_permutation(samples_, ~key);
  epoch.ends.resize(epoch.documents.size());
  int64_t end = 0;
  for (std::size_t i = 0; i < epoch.documents.size(); ++i)
    epoch.ends[i] = end += document_length(epoch.documents[i]);
  epoch.number = number;
  return epoch;
}

void PackedDataset::sample(int64_t i, const SampleOut& out) {
  const Epoch& order = epoch(i / samples_);
  const int64_t first = order.samples[i % samples_] * sequence_, stop = first + sequence_ + 1;
  int64_t at = first;
  auto entry = std::upper_bound(order.ends.begin(), order.ends.end(), at) - order.ends.begin();
  for (; at < stop; ++entry) {
    const int64_t document = order.documents[entry];
    const int64_t begin = order.ends[entry] - document_length(document);
    const int64_t end = std::min(order.ends[entry], stop);
    const int64_t stored = std::max<int64_t>(0, std::min(end, begin + data_->document_tokens(document)) - at);
    int64_t* const tokens = out.tokens + (at - first);
    data_->read(data_->document_begin(document) + at - begin, stored, tokens);
    if (at + stored < end) tokens[stored] = eos_;
    if (out.starts) std::fill(out.starts + (at - first), out.starts + (end - first), at - first);
    at = end;
  }
}

}  // namespace hero
