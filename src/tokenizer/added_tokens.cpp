#include "tokenizer/added_tokens.h"

#include <algorithm>

namespace hero {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)),
      ends_(1, -1),
      spaces_("[:White_Space:]"),
      word_characters_("[[:Alphabetic:][:M:][:Nd:][:Pc:][:Join_Control:]]") {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    begins_.set(static_cast<unsigned char>(tokens_[i].content[0]));
    uint64_t node = 0;
    for (const char c : tokens_[i].content) {
      const auto [edge, added] =
          edges_.emplace(node << 8 | static_cast<unsigned char>(c), static_cast<uint32_t>(ends_.size()));
      if (added) ends_.push_back(-1);
      node = edge->second;
    }
    ends_[node] = static_cast<int32_t>(i);
  }
}

const AddedToken* AddedTokens::longest_at(std::string_view text) const {
  uint64_t node = 0;
  int32_t found = -1;
  for (const char c : text) {
    const auto edge = edges_.find(node << 8 | static_cast<unsigned char>(c));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (ends_[node] >= 0) found = ends_[node];
  }
  return found < 0 ? nullptr : &tokens_[found];
}

std::vector<AddedTokens::Section> AddedTokens::split(std::string_view text) const {
  if (tokens_.empty()) return {{text, -1}};
  std::vector<Section> sections;
  std::size_t end_of_last = 0;  // of the last token, including stripped whitespace
  for (std::size_t at = 0; at < text.size();) {
    const auto* const token =
        begins_[static_cast<unsigned char>(text[at])] ? longest_at(text.substr(at)) : nullptr;
    if (!token) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + token->content.size();
    at = end;  // continue the search here, regardless of stripping
    if (token->single_word) {
      const std::size_t before = std::min<std::size_t>(begin, 4);  // a character has at most 4 bytes
      if (word_characters_.suffix(text.substr(begin - before, before)) > 0 ||
          word_characters_.prefix(text.substr(end, 4)) > 0)
        continue;
    }
    if (token->lstrip) begin = std::max(end_of_last, begin - spaces_.suffix(text.substr(0, begin)));
    if (token->rstrip) end += spaces_.prefix(text.substr(end));
    if (end_of_last < begin) sections.push_back({text.substr(end_of_last, begin - end_of_last), -1});
    // Nothing is left of a token of whitespace that the last one stripped.
    if (begin < end) sections.push_back({text.substr(begin, end - begin), token->id});
    end_of_last = end;
  }
  if (end_of_last < text.size()) sections.push_back({text.substr(end_of_last), -1});
  return sections;
}

}  // namespace hero
