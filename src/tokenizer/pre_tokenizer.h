// The pre-tokenizers of tokenizer.json files: a text is cut into words, which BPE encodes one by one. Every
// step cuts the pieces that the step before it left, each as if it were the whole text.
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
  /// What becomes of a match: its own piece; dropped; joined with the matches beside it; the end of the piece
  /// before it; the begin of the piece behind it.
  enum class Behavior { isolated, removed, contiguous, merged_with_previous, merged_with_next };
  using Pattern = std::variant<Regex, CharacterSet>;

  /// Cuts at the matches of `pattern`, or, inverted, at what lies between them.
  void add_split(Pattern pattern, Behavior behavior, bool invert);
  /// Writes a space before every piece that begins with none.
  void add_prefix_space();

  bool keeps_text() const { return keeps_text_; }

  /// What a call needs; views into it live until the next.
  struct Scratch {
    std::vector<std::string_view> words, pieces;
    std::vector<std::pair<std::size_t, std::size_t>> matches;
    std::deque<std::string> made;
  };
  /// The words of `text` (valid UTF-8), none of them empty, in scratch.words.
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
