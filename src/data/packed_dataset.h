// One token set as training samples of S + 1 tokens. Every epoch has its own order: documents are shuffled,
// laid end to end, cut into samples that share one token with the next (the last target of one is the first
// input of the other), and the samples are shuffled. What does not fill a sample at an epoch's end is left
// out of that epoch. Orders are functions of seed and epoch. Memory: 16 bytes a document and 8 a sample, for
// two epochs at most.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "data/indexed_dataset.h"

namespace hero {

class PackedDataset {
 public:
  /// `eos`: appended to documents that do not end with it; -1: documents are taken as they are. UserError
  /// when the set does not fill one sample.
  PackedDataset(std::shared_ptr<const IndexedDataset> tokens, int64_t sequence, uint64_t seed,
                int64_t eos = -1);

  /// Samples of one epoch.
  int64_t samples() const { return samples_; }
  /// Tokens of one epoch, with appended ends.
  int64_t tokens() const { return tokens_; }

  /// Writes the sequence + 1 tokens of sample i >= 0, which belongs to epoch i / samples(). Not thread-safe.
  void sample(int64_t i, int64_t* out);

 private:
  struct Epoch {
    int64_t number = -1;
    std::vector<int64_t> documents;  // in shuffled order
    std::vector<int64_t> ends;       // where each of them ends in the epoch's tokens
    std::vector<int64_t> samples;    // in shuffled order
  };
  const Epoch& epoch(int64_t number);
  int64_t document_length(int64_t document) const;

  std::shared_ptr<const IndexedDataset> data_;
  int64_t sequence_, eos_, samples_ = 0, tokens_ = 0;
  uint64_t seed_;
  std::vector<bool> unfinished_;  // by document: lacks its end
  std::array<Epoch, 2> epochs_;   // by parity: a step may straddle two
};

}  // namespace hero
