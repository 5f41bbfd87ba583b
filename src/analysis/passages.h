#pragma once
// The text that an analysis reads: windows of token files and of benchmark rows.
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace hero {

/// Who made token ids, as far as that is known.
struct KnownTokenizer {
  std::string where;   ///< the file or folder that says so
  std::string sha256;  ///< of the tokenizer file
};

/// That of a model folder; none where the folder holds no tokenizer.
std::optional<KnownTokenizer> tokenizer_of(const std::filesystem::path& folder);

/// UserError naming both where two of them differ.
void check_same_tokenizer(const std::vector<KnownTokenizer>& known);

/// A data set as windows of S + 1 tokens that share one token with the next.
struct TokenSet {
  std::string name;
  int64_t windows = 0;
  /// Writes S + 1 tokens, zeros behind the set's end, and returns how many of the targets are real.
  std::function<int64_t(int64_t window, int64_t* out)> read;
  std::optional<KnownTokenizer> tokenizer = {};  ///< of token files
};

/// Opens the prefix of token files, as SequentialReader, or a benchmark file (.jsonl, also .gz and .zst): its
/// rows' texts by the tokenizer of `folder`, each followed by the end token where it has one. UserError for
/// unfit files, for text where the folder has no tokenizer, for ids outside the vocabulary, and for fewer
/// than two tokens.
TokenSet open_token_set(const std::string& path, const std::filesystem::path& folder, int64_t sequence,
                        int64_t vocab_size);

/// Windows chosen from several sets, for forward passes.
class Passages {
 public:
  /// At most `tokens` in whole windows, but one of every set at least: as many of each set as of the others
  /// where they have as many, spread evenly over the set, the first one always among them.
  Passages(std::vector<TokenSet> sets, int64_t sequence, int64_t tokens);

  int64_t windows() const { return static_cast<int64_t>(chosen_.size()); }
  int64_t sequence() const { return sequence_; }
  std::vector<std::string> names() const;

  struct Batch {
    at::Tensor inputs_BS;  ///< int64
    at::Tensor targets_T;  ///< int64, -1 behind a set's end
    at::Tensor real_T;     ///< int64: the places in T that have a target
  };
  /// Windows first .. first + count - 1.
  Batch read(int64_t first, int64_t count) const;

 private:
  struct Place {
    size_t set;
    int64_t window;
  };
  std::vector<TokenSet> sets_;
  int64_t sequence_;
  std::vector<Place> chosen_;
};

}  // namespace hero
