// Pre-tokenizers of tokenizer.json files: split a text into words, which BPE encodes separately. Each step
// splits the pieces of the previous step independently.
#pragma once
#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/character_set.h"
#include "tokenizer/regex.h"

namespace hero {

class PreTokenizer {
 public:
  /// Handling of a match: its own piece; removed; merged with adjacent matches; appended to the previous
  /// piece; prepended to the next piece.
  enum class Behavior { isolated, removed, contiguous, merged_with_previous, merged_with_next };
  using Pattern = std::variant<Regex, CharacterSet>;

  /// Splits at the matches of `pattern`, or, inverted, at the gaps between them.
  void add_split(Pattern pattern, Behavior behavior, bool invert);
  /// Prepends a space to every piece that does not start with one.
  void add_prefix_space();

  bool keeps_text() const { return keeps_text_; }

  /// Buffers of a call; views into it are valid until the next call.
  struct Scratch {
    std::vector<std::string_view> words, pieces;
    std::vector<std::pair<std::size_t, std::size_t>> matches;
    std::deque<std::string> prefixed;
  };
  /// Stores the non-empty words of `text` (valid UTF-8) in scratch.words.
  void split(std::string_view text, Scratch& scratch) const;

 private:
  struct Split {
    Pattern pattern;
    Behavior behavior;
    bool invert;
  };
  struct PrefixSpace {};

  std::vector<std::variant<Split, PrefixSpace>> steps_;
  bool keeps_text_ = true;
};

}  // namespace hero
