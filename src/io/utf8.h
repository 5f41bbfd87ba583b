#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace hero {

/// The offset of the first byte that does not continue well-formed UTF-8 (Unicode 15, table 3-7: no
/// surrogates, no overlong forms, at most U+10FFFF), or npos when the whole text is valid.
std::size_t find_invalid_utf8(std::string_view text);

/// The largest n' <= n such that text[0, n') ends between two characters of valid UTF-8.
std::size_t utf8_floor(std::string_view text, std::size_t n);

/// The bytes as valid UTF-8: every maximal part of a character that ends early, and every other byte that
/// begins none, becomes one U+FFFD (Unicode 15, section 3.9).
std::string to_valid_utf8(std::string bytes);

}  // namespace hero
