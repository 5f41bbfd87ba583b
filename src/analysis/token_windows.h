#pragma once
// Windows of tokens for an analysis, from token files and benchmark files.
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/tokenizer_identity.h"

namespace hero {

/// A dataset as windows of S + 1 tokens; adjacent windows share one token.
struct TokenDataset {
  std::string name;
  int64_t windows = 0;
  /// Writes S + 1 tokens, padded with zeros at the dataset's end; returns the number of valid targets.
  std::function<int64_t(int64_t window, int64_t* out)> read;
  /// Writes the document starts of these tokens, as SampleOut::starts. A benchmark's row is a document.
  std::function<void(int64_t window, int64_t* out)> read_starts;
  std::optional<TokenizerIdentity> tokenizer = {};  ///< of token files
};

/// Opens token files by prefix, like SequentialReader, or a benchmark file (.jsonl, also .gz and .zst), whose
/// rows are encoded with the tokenizer of `folder` and separated by the EOS token if it has one. UserError
/// for invalid files, a benchmark file without a tokenizer, ids outside the vocabulary, and fewer than two
/// tokens.
TokenDataset open_token_dataset(const std::string& path, const std::filesystem::path& folder,
                                int64_t sequence, int64_t vocab_size);

/// Windows selected from several datasets, for forward passes.
class TokenWindows {
 public:
  /// At most `tokens` tokens in whole windows, but at least one window per dataset. Datasets get equal shares
  /// as far as their sizes allow; a dataset's windows are evenly spaced and include its first.
  TokenWindows(std::vector<TokenDataset> datasets, int64_t sequence, int64_t tokens);

  int64_t windows() const { return static_cast<int64_t>(selected_.size()); }
  int64_t sequence() const { return sequence_; }
  std::vector<std::string> names() const;

  struct Batch {
    at::Tensor inputs_BS;  ///< int64
    at::Tensor targets_T;  ///< int64, -1 after a dataset's end
    at::Tensor valid_T;    ///< int64: positions in T that have a target
    at::Tensor starts_BS;  ///< int64: first position of each token's document in its window
  };
  /// Windows first .. first + count - 1.
  Batch read(int64_t first, int64_t count) const;

 private:
  struct Window {
    size_t dataset;
    int64_t window;
  };
  std::vector<TokenDataset> datasets_;
  int64_t sequence_;
  std::vector<Window> selected_;
};

}  // namespace hero
