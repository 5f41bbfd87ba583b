#include "tokenizer/character_set.h"

#include <unicode/uniset.h>

#include "io/error.h"
#include "tokenizer/icu_size.h"

namespace hero {

struct CharacterSet::Set {
  icu::UnicodeSet characters;
};

CharacterSet::CharacterSet(const std::string& pattern) {
  UErrorCode status = U_ZERO_ERROR;
  auto set = std::make_unique<Set>(Set{icu::UnicodeSet(icu::UnicodeString::fromUTF8(pattern), status)});
  if (U_FAILURE(status)) throw RunError("ICU: invalid character set " + pattern + ": " + u_errorName(status));
  set->characters.freeze();
  set_ = std::move(set);
}

CharacterSet::CharacterSet(CharacterSet&&) noexcept = default;
CharacterSet::~CharacterSet() = default;

std::size_t CharacterSet::prefix(std::string_view text, bool within) const {
  return static_cast<std::size_t>(set_->characters.spanUTF8(
      text.data(), icu_size(text), within ? USET_SPAN_SIMPLE : USET_SPAN_NOT_CONTAINED));
}

std::size_t CharacterSet::suffix(std::string_view text) const {
  return text.size() - static_cast<std::size_t>(
                           set_->characters.spanBackUTF8(text.data(), icu_size(text), USET_SPAN_SIMPLE));
}

void CharacterSet::find(std::string_view text,
                        std::vector<std::pair<std::size_t, std::size_t>>& matches) const {
  for (std::size_t at = prefix(text, false); at < text.size(); at += prefix(text.substr(at), false)) {
    std::size_t end = at + 1;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    matches.emplace_back(at, end);
    at = end;
  }
}

}  // namespace hero
