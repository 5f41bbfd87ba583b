// Packs a dataset into training samples of S + 1 tokens. Each epoch shuffles and concatenates the documents,
// splits them into samples that overlap by one token (the last target is the first input of the next sample),
// and shuffles the samples. An incomplete last sample is dropped. The order is a function of seed and epoch.
// Memory: 16 bytes per document and 8 per sample, for at most two epochs.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/sample.h"

namespace hero {

class PackedDataset {
 public:
  /// `eos`: appended to documents that do not end with it; -1: none. UserError if the dataset is smaller than
  /// one sample.
  PackedDataset(std::shared_ptr<const IndexedDataset> tokens, int64_t sequence, uint64_t seed,
                int64_t eos = -1);

  /// Writes the sequence + 1 tokens of sample i >= 0. An epoch has (tokens - 1) / sequence samples, where
  /// tokens includes appended EOS tokens. Not thread-safe.
  void sample(int64_t i, const SampleOut& out);

 private:
  struct Epoch {
    int64_t number = -1;
    std::vector<int64_t> documents;  // in shuffled order
    std::vector<int64_t> ends;       // end offset of each document in the epoch's tokens
    std::vector<int64_t> samples;    // in shuffled order
  };
  const Epoch& epoch(int64_t number);
  int64_t document_length(int64_t document) const;

  std::shared_ptr<const IndexedDataset> data_;
  int64_t sequence_, eos_, samples_ = 0;
  uint64_t seed_;
  std::vector<bool> needs_eos_;  // by document: does not end with EOS
  std::array<Epoch, 2> epochs_;  // by parity: a step may span two epochs
};

}  // namespace hero
