// Best-fit-decreasing packing of documents into sequences (arXiv 2404.10830). A bin has S + 1 entries, the
// tokens of a training sample. A document of n tokens is cut into pieces of S + 1 tokens that overlap by one,
// so that every token but the document's first is a target once; the last piece has the rest. A document of
// at most S + 1 tokens is one piece, and one of a single token, which has no target, is left out. Longest
// first, each piece goes into the fullest bin with enough room, or opens a new one.
//
// Which lengths share a bin depends on the lengths alone. An epoch permutes the documents of equal length,
// the bins, and the pieces within each bin, so every epoch has the same number of bins and the same padding.
// Time: O(n log S). Memory: 16 bytes per document and 8 per bin, and 8 per document and bin in each epoch.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

namespace hero {

class BestFitPacking {
 public:
  /// `length(d)`: tokens of document d < `documents`, at least 0; also called by the other functions.
  BestFitPacking(int64_t documents, std::function<int64_t(int64_t)> length, int64_t sequence);

  /// Tokens [first, first + count) of a document.
  struct Piece {
    int64_t document, first, count;
    bool operator==(const Piece&) const = default;
  };

  int64_t bins() const { return full_bins() + shared_bins(); }
  /// Entries of all bins without a token.
  int64_t padding() const { return padding_; }
  /// Documents of more than one piece.
  int64_t split_documents() const { return split_documents_; }

  struct Epoch {
    std::vector<int64_t> by_length;  // documents with a last piece of fewer than S + 1 tokens, longest first
    std::vector<int64_t> bins;       // in shuffled order
    uint64_t key = 0;
  };
  Epoch epoch(uint64_t key) const;

  /// The pieces of bin i of an epoch, in their order in the sample.
  std::vector<Piece> pieces(const Epoch& epoch, int64_t i) const;

 private:
  /// Tokens of the last piece of a document, 0 if the document ends with a piece of S + 1 tokens.
  int64_t rest(int64_t document) const;
  int64_t full_bins() const { return full_ends_.empty() ? 0 : full_ends_.back(); }
  int64_t shared_bins() const { return static_cast<int64_t>(slot_ends_.size()); }

  std::function<int64_t(int64_t)> length_;
  int64_t sequence_, padding_ = 0, split_documents_ = 0;
  std::vector<int64_t> full_ends_;  // by document: pieces of S + 1 tokens up to its end; each fills a bin
  std::vector<int64_t> slots_;      // indices into Epoch::by_length, grouped by shared bin
  std::vector<int64_t> slot_ends_;  // by shared bin: end of its slots
};

}  // namespace hero
