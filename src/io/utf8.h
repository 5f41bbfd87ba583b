#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace hero {

/// Offset of the first byte of invalid UTF-8 (Unicode 15, table 3-7: no surrogates, no overlong forms, at
/// most U+10FFFF), or npos if the text is valid.
std::size_t find_invalid_utf8(std::string_view text);

/// Largest n' <= n such that text[0, n') ends at a character boundary of valid UTF-8.
std::size_t utf8_floor(std::string_view text, std::size_t n);

/// Replaces every maximal subpart of invalid UTF-8 with one U+FFFD (Unicode 15, section 3.9).
std::string to_valid_utf8(std::string bytes);

}  // namespace hero
