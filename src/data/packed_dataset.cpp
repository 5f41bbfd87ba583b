#include "data/packed_dataset.h"

#include <algorithm>

#include "data/counter_random.h"
#include "io/error.h"

namespace hero {

PackedDataset::PackedDataset(std::shared_ptr<const IndexedDataset> tokens, int64_t sequence, uint64_t seed,
                             int64_t eos, Packing packing, std::shared_ptr<const IndexedDataset> mask)
    : data_(std::move(tokens)),
      mask_(std::move(mask)),
      sequence_(sequence),
      eos_(eos),
      seed_(seed),
      needs_eos_(data_->documents()) {
  int64_t count = data_->tokens();
  for (int64_t d = 0; eos_ >= 0 && d < data_->documents(); ++d) {
    if (data_->document_tokens(d) == 0) continue;
    int64_t last;
    data_->read(data_->document_begin(d + 1) - 1, 1, &last);
    needs_eos_[d] = last != eos_;
    count += needs_eos_[d];
  }
  const bool concat = packing == Packing::kConcat;
  if (!concat) {
    // By value: the dataset may be moved.
    const auto length = [data = data_, needs_eos = needs_eos_](int64_t d) {
      return data->document_tokens(d) + needs_eos[d];
    };
    best_fit_.emplace(data_->documents(), length, sequence_);
  }
  samples_ = concat ? std::max<int64_t>(count - 1, 0) / sequence_ : best_fit_->bins();
  if (samples_ == 0) {
    throw UserError(data_->prefix() + ".bin: " + std::to_string(count) + " tokens in " +
                    std::to_string(data_->documents()) + " documents, expected at least " +
                    (concat ? std::to_string(sequence_ + 1) + " (one sample of train.sequence = " +
                                  std::to_string(sequence_) + " and its last target)"
                            : "one document of 2 tokens, an input and its target"));
  }
}

int64_t PackedDataset::document_length(int64_t document) const {
  return data_->document_tokens(document) + needs_eos_[document];
}

const PackedDataset::Epoch& PackedDataset::epoch(int64_t number) {
  Epoch& epoch = epochs_[number % 2];
  if (epoch.number == number) return epoch;
  const uint64_t key = counter_bits(seed_, static_cast<uint64_t>(number));
  epoch.number = number;
  if (best_fit_) {
    epoch.bins = best_fit_->epoch(key);
    return epoch;
  }
  epoch.documents = counter_permutation(data_->documents(), key);
  epoch.samples = counter_permutation(samples_, ~key);
  epoch.ends.resize(epoch.documents.size());
  int64_t end = 0;
  for (std::size_t i = 0; i < epoch.documents.size(); ++i)
    epoch.ends[i] = end += document_length(epoch.documents[i]);
  return epoch;
}

void PackedDataset::sample(int64_t i, const SampleOut& out) {
  const Epoch& order = epoch(i / samples_);
  if (best_fit_) {
    best_fit_sample(order, i % samples_, out);
  } else {
    concat_sample(order, i % samples_, out);
  }
}

void PackedDataset::concat_sample(const Epoch& order, int64_t i, const SampleOut& out) const {
  const int64_t first = order.samples[i] * sequence_, stop = first + sequence_ + 1;
  auto entry = std::upper_bound(order.ends.begin(), order.ends.end(), first) - order.ends.begin();
  for (int64_t at = first; at < stop; ++entry) {
    const int64_t document = order.documents[entry];
    const int64_t begin = order.ends[entry] - document_length(document);
    const int64_t end = std::min(order.ends[entry], stop);
    copy(document, at - begin, end - at, out, at - first);
    at = end;
  }
}

void PackedDataset::best_fit_sample(const Epoch& order, int64_t i, const SampleOut& out) const {
  int64_t at = 0;
  for (const auto& piece : best_fit_->pieces(order.bins, i)) {
    copy(piece.document, piece.first, piece.count, out, at);
    if (out.trained) out.trained[at] = 0;
    at += piece.count;
  }
  const int64_t padding = sequence_ + 1 - at;
  if (out.tokens) std::fill_n(out.tokens + at, padding, std::max<int64_t>(eos_, 0));
  if (out.starts) std::fill_n(out.starts + at, padding, at);
  if (out.trained) std::fill_n(out.trained + at, padding, 0);
}

void PackedDataset::copy(int64_t document, int64_t first, int64_t count, const SampleOut& out,
                         int64_t at) const {
  const int64_t begin = data_->document_begin(document) + first;
  const int64_t stored = std::clamp<int64_t>(data_->document_tokens(document) - first, 0, count);
  if (out.tokens) {
    data_->read(begin, stored, out.tokens + at);
    if (stored < count) out.tokens[at + stored] = eos_;
  }
  if (out.starts) std::fill_n(out.starts + at, count, at);
  if (!out.trained) return;
  if (!mask_) {
    std::fill_n(out.trained + at, count, 1);
    return;
  }
  mask_->read(begin, stored, out.trained + at);
  if (stored < count) mask_->read(begin + stored - 1, 1, out.trained + at + stored);
}

PackedDataset::Summary PackedDataset::summary() {
  Summary summary;
  for (int64_t d = 0; d < data_->documents(); ++d) summary.documents += document_length(d) > 0;
  if (best_fit_) {
    summary.split = best_fit_->split_documents();
    summary.padding =
        static_cast<double>(best_fit_->padding()) / static_cast<double>(samples_ * (sequence_ + 1));
    return summary;
  }
  const Epoch& order = epoch(0);
  int64_t begin = 0;
  for (const int64_t end : order.ends) {
    const int64_t sample = std::min(begin / sequence_, samples_ - 1);
    summary.split += end > begin && end > (sample + 1) * sequence_ + 1;
    begin = end;
  }
  return summary;
}

}  // namespace hero
