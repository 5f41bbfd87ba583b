// Order of training samples: a function of sources, phases, sequence length, seed and position only,
// independent of the number of processes, calls and restarts. Also reads a validation set sequentially for
// evaluation.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/packed_dataset.h"
#include "data/phases.h"
#include "data/token_files.h"
#include "tokenizer/tokenizer_identity.h"

namespace hero {

/// How the documents of a TokenStream become samples.
struct PackOptions {
  Packing pack = Packing::kConcat;
  bool loss_mask = false;  ///< read the loss masks of the sources (loss_mask.h), which must exist
};

class TokenStream {
 public:
  /// Opens the sources of all phases. `vocab_size`: upper bound of token ids; 0: not checked. It is checked
  /// by reading all tokens, or for a source with OUT.json there and in the tokens that read() reads. `eos`:
  /// appended to documents that do not end with it; -1: never. UserError for invalid files, datasets shorter
  /// than a sample, and datasets of different tokenizers or EOS tokens.
  TokenStream(const DataPlan& plan, int64_t sequence, uint64_t seed, int64_t vocab_size, int64_t eos = -1,
              const PackOptions& options = {});

  /// Fills the arrays [count][sequence + 1] of `out` with samples [first_sample, first_sample + count) of the
  /// global order. Not thread-safe.
  void read(int64_t first_sample, int64_t count, const SampleOut& out);

  /// The number of targets in these samples that are trained on, of the main model (module 0) and of
  /// `modules` multi-token prediction modules: module k predicts token i + k + 1 at position i.
  /// `own_document`: only where its last input, token i + k, is in the document of token i. Independent of
  /// read(), which it does not slow down.
  std::vector<int64_t> trained_targets(int64_t first_sample, int64_t count, int64_t modules = 0,
                                       bool own_document = false);

  /// For each source, the documents that its samples split and the share of padding, as one line.
  std::vector<std::string> summary();

  /// For each source, the number of samples in an epoch.
  std::vector<int64_t> epoch_samples() const;

  /// Tokenizer and counts of the first source that has them.
  const std::optional<TokenFiles>& token_files() const { return token_files_; }

 private:
  int64_t sequence_;
  std::vector<std::string> prefixes_;
  std::vector<PackedDataset> sets_;
  PhasedSampler sampler_, counted_sampler_;  // for read() and trained_targets(): moving back is slow
  std::optional<TokenFiles> token_files_;
};

/// Windows of S + 1 tokens over a dataset in stored order, overlapping by one token: every token but the
/// first is a target exactly once.
class SequentialReader {
 public:
  /// Opens PREFIX, or PREFIX-valid; `vocab_size` as above. UserError for invalid files and for fewer than two
  /// tokens.
  SequentialReader(const std::string& prefix, int64_t sequence, int64_t vocab_size);

  int64_t windows() const { return (data_.tokens() - 1 + sequence_ - 1) / sequence_; }
  /// Targets of the first `windows` windows.
  int64_t targets(int64_t windows) const { return std::min(windows * sequence_, data_.tokens() - 1); }
  const std::string& prefix() const { return data_.prefix(); }

  /// Writes sequence + 1 tokens, padded with zeros at the end of the dataset. Returns the number of valid
  /// targets. Thread-safe.
  int64_t read(int64_t window, int64_t* out) const;

  /// Writes the document starts of the tokens of read(), as SampleOut::starts. Thread-safe.
  void read_starts(int64_t window, int64_t* out) const;

  /// Opens the loss mask next to the token files. UserError as open_loss_mask.
  void open_mask();
  /// The same if there is one; returns whether.
  bool open_mask_if_present();
  bool has_mask() const { return mask_ != nullptr; }
  /// Writes the sequence + 1 elements of the mask for the tokens of read(), zeros at the end of the dataset.
  /// Thread-safe.
  void read_mask(int64_t window, int64_t* out) const;
  /// Targets of the first `windows` windows that the mask marks.
  int64_t trained_targets(int64_t windows) const;

  /// nullopt for token files of other programs.
  std::optional<TokenizerIdentity> tokenizer() const;

 private:
  int64_t read_padded(const IndexedDataset& data, int64_t window, int64_t* out) const;

  IndexedDataset data_;
  std::shared_ptr<const IndexedDataset> mask_;
  int64_t sequence_;
  std::optional<TokenFiles> token_files_;
};

}  // namespace hero
