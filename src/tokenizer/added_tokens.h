// Added tokens, matched in the text before normalization and pre-tokenization.
#pragma once
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/character_set.h"

namespace hero {

struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool single_word = false;  // only matches as a whole word
  bool lstrip = false;       // includes preceding whitespace
  bool rstrip = false;       // includes following whitespace
  bool normalized = false;   // matches in normalized text
  bool special = false;      // omitted by decode
};

class AddedTokens {
 public:
  /// Matches every token by its content, unmodified.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Section {
    std::string_view text;
    int32_t id;  // token id, or -1 for text between tokens
  };
  /// Splits `text` at added tokens, leftmost-longest. Without tokens: one section.
  std::vector<Section> split(std::string_view text) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::bitset<256> begins_;                       // by byte: a token begins with it
  std::unordered_map<uint64_t, uint32_t> edges_;  // by node << 8 | byte
  std::vector<int32_t> ends_;                     // by node: the token that ends there, or -1
  CharacterSet spaces_, word_characters_;
};

}  // namespace hero
