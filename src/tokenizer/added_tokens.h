// Tokens that are looked for in the text itself, before anything is normalised or split.
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
  bool single_word = false;  // not beside a letter, digit or the like
  bool lstrip = false;       // takes the whitespace before it along
  bool rstrip = false;       // and behind it
  bool normalized = false;   // is looked for, normalised, in normalised text
  bool special = false;      // invisible when decoded
};

class AddedTokens {
 public:
  /// Looks for every token by its content as it stands here.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Section {
    std::string_view text;
    int32_t id;  // of a token, or -1 for text between tokens
  };
  /// `text` from left to right: of the tokens that begin leftmost, the longest. Without tokens one section.
  std::vector<Section> split(std::string_view text) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::bitset<256> begins_;                       // by byte: some token begins with it
  std::unordered_map<uint64_t, uint32_t> edges_;  // by node << 8 | byte
  std::vector<int32_t> ends_;                     // by node: the token that ends there, or -1
  CharacterSet spaces_, word_characters_;
};

}  // namespace hero
