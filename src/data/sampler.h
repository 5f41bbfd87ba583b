// The order of training samples: a function of the sources, the sequence length, the seed and the position
// alone, whatever the number of processes, calls and restarts. And the walk over a held-out set for
// evaluation.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/packed_dataset.h"
#include "data/token_files.h"

namespace hero {

struct DataSource {
  std::string prefix;
  double weight = 1;
};

/// Reads `PREFIX` or `WEIGHT:PREFIX`, several times. UserError for a weight that is not above 0, and when
/// only some have one.
std::vector<DataSource> parse_sources(const std::vector<std::string>& arguments);

/// Which source the sample at a position comes from, and its number within that source. After any number of
/// positions every source's count is within 1 of its share (the quota method: M. Balinski, H. Young, 1975).
/// Weights count in units of 2^-32.
class BlendedSampler {
 public:
  struct Choice {
    int64_t source, index;
  };

  /// Weights above 0, in any unit.
  explicit BlendedSampler(const std::vector<double>& weights);

  /// Going on costs a few integer operations a position passed, going back starts at 0 again. No data are
  /// read.
  Choice at(int64_t position);

 private:
  Choice next();
  std::vector<int64_t> units_, counts_;
  int64_t total_ = 0, position_ = 0;
};

class TokenStream {
 public:
  /// Opens the sources (PREFIX, or PREFIX-train as hero data tokenize writes it). `vocab_size`: every token
  /// must be below it (0: not checked; sets with a OUT.json are checked by it, others read once). `eos`:
  /// appended to documents that do not end with it (-1: never). UserError for unfit files, sets shorter than
  /// a sample, sets of different tokenizers.
  TokenStream(const std::vector<DataSource>& sources, int64_t sequence, uint64_t seed, int64_t vocab_size,
              int64_t eos = -1);

  /// Fills out[count][sequence + 1] with the samples first .. first + count - 1 of the global order. Not
  /// thread-safe.
  void read(int64_t first_sample, int64_t count, int64_t* out);

  /// Targets in one pass over every source.
  int64_t tokens_per_epoch() const;
  int64_t samples_per_epoch() const;

  /// The tokenizer and counts that stand beside the sources, where they do.
  const std::optional<TokenFiles>& token_files() const { return token_files_; }

 private:
  int64_t sequence_;
  std::vector<PackedDataset> sets_;
  BlendedSampler blend_;
  std::optional<TokenFiles> token_files_;
};

/// Windows of S + 1 tokens over a set in its stored order, sharing one token with the next: every token but
/// the very first is a target exactly once.
class SequentialReader {
 public:
  /// Opens PREFIX, or PREFIX-valid; `vocab_size` as above. UserError for unfit files and for fewer than two
  /// tokens.
  SequentialReader(const std::string& prefix, int64_t sequence, int64_t vocab_size);

  int64_t windows() const { return (data_.tokens() - 1 + sequence_ - 1) / sequence_; }
  int64_t tokens() const { return data_.tokens(); }
  const std::string& prefix() const { return data_.prefix(); }

  /// Writes sequence + 1 tokens, zeros behind the set's end, and returns how many of the targets are real.
  /// Thread-safe.
  int64_t read(int64_t window, int64_t* out) const;

  const std::optional<TokenFiles>& token_files() const { return token_files_; }

 private:
  IndexedDataset data_;
  int64_t sequence_;
  std::optional<TokenFiles> token_files_;
};

}  // namespace hero
