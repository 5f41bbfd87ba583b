// Packs a dataset into training samples of S + 1 tokens. The order is a function of seed and epoch.
// concat: each epoch shuffles and concatenates the documents, splits them into samples that overlap by one
// token (the last target is the first input of the next sample), and shuffles the samples. An incomplete last
// sample is dropped. Memory: 16 bytes per document and 8 per sample, for at most two epochs.
// best_fit: see best_fit.h. The first token of each piece and the padding at the end of a sample, EOS tokens
// (0 without one), are not trained on.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "config/choices.h"
#include "data/best_fit.h"
#include "data/indexed_dataset.h"
#include "data/sample.h"

namespace hero {

class PackedDataset {
 public:
  /// `eos`: appended to documents that do not end with it; -1: none. `mask`: for each stored token 1 if it is
  /// trained on, else 0, with the same document lengths; null: all are. An appended EOS is trained on if the
  /// token before it is. UserError if the dataset has no sample.
  PackedDataset(std::shared_ptr<const IndexedDataset> tokens, int64_t sequence, uint64_t seed,
                int64_t eos = -1, Packing packing = Packing::kConcat,
                std::shared_ptr<const IndexedDataset> mask = nullptr);

  /// Writes sample i >= 0. A concat epoch has (tokens - 1) / sequence samples, where tokens includes appended
  /// EOS tokens. Not thread-safe.
  void sample(int64_t i, const SampleOut& out);

  int64_t epoch_samples() const { return samples_; }

  /// Documents with tokens, those of them that no sample of the first epoch contains whole, and the share of
  /// padding among the entries of all samples.
  struct Summary {
    int64_t documents = 0, split = 0;
    double padding = 0;
  };
  Summary summary();

 private:
  struct Epoch {
    int64_t number = -1;
    std::vector<int64_t> documents;  // concat: in shuffled order
    std::vector<int64_t> ends;       // end offset of each document in the epoch's tokens
    std::vector<int64_t> samples;    // in shuffled order
    BestFitPacking::Epoch bins;      // best_fit
  };
  const Epoch& epoch(int64_t number);
  int64_t document_length(int64_t document) const;
  void concat_sample(const Epoch& order, int64_t i, const SampleOut& out) const;
  void best_fit_sample(const Epoch& order, int64_t i, const SampleOut& out) const;
  /// Writes tokens [first, first + count) of a document, including an appended EOS, to entries from `at` on.
  void copy(int64_t document, int64_t first, int64_t count, const SampleOut& out, int64_t at) const;

  std::shared_ptr<const IndexedDataset> data_, mask_;
  int64_t sequence_, eos_, samples_ = 0;
  uint64_t seed_;
  std::vector<bool> needs_eos_;  // by document: does not end with EOS
  std::optional<BestFitPacking> best_fit_;
  std::array<Epoch, 2> epochs_;  // by parity: a step may span two epochs
};

}  // namespace hero
