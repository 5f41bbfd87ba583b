#include "io/utf8.h"

#include <cstdint>
#include <cstring>

namespace hero {

namespace {

bool continuation(unsigned char c) { return (c & 0xC0) == 0x80; }

// Length of the well-formed character at p, with n bytes left; 0 if invalid.
std::size_t character_length(const unsigned char* p, std::size_t n) {
  const unsigned char a = p[0];
  if (a < 0x80) return 1;
  if (a < 0xC2 || n < 2) return 0;
  const unsigned char b = p[1];
  if (a < 0xE0) return continuation(b) ? 2 : 0;
  if (n < 3 || !continuation(b) || !continuation(p[2])) return 0;
  if (a < 0xF0) {
    if ((a == 0xE0 && b < 0xA0) || (a == 0xED && b > 0x9F)) return 0;
    return 3;
  }
  if (n < 4 || !continuation(p[3]) || a > 0xF4) return 0;
  if ((a == 0xF0 && b < 0x90) || (a == 0xF4 && b > 0x8F)) return 0;
  return 4;
}

// Length of the truncated character at p (the maximal subpart of Unicode 15, section 3.9); at least 1.
std::size_t truncated_length(const unsigned char* p, std::size_t n) {
  const unsigned char a = p[0];
  if (n < 2 || a < 0xC2 || a > 0xF4) return 1;
  const unsigned char least = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
  const unsigned char most = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
  if (p[1] < least || p[1] > most) return 1;
  return a >= 0xF0 && n > 2 && continuation(p[2]) ? 3 : 2;
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  const std::size_t n = text.size();
  std::size_t i = 0;
  while (i < n) {
    uint64_t eight;
    while (i + 8 <= n && (std::memcpy(&eight, p + i, 8), (eight & 0x8080808080808080ull) == 0)) i += 8;
    if (i >= n) break;
    const std::size_t length = character_length(p + i, n - i);
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

std::string to_valid_utf8(std::string bytes) {
  std::string valid;
  std::string_view rest = bytes;
  for (std::size_t bad; (bad = find_invalid_utf8(rest)) != rest.npos;) {
    valid.append(rest.substr(0, bad)).append("\xEF\xBF\xBD");
    rest.remove_prefix(bad);
    rest.remove_prefix(truncated_length(reinterpret_cast<const unsigned char*>(rest.data()), rest.size()));
  }
  return valid.empty() ? bytes : valid.append(rest);
}

std::size_t utf8_floor(std::string_view text, std::size_t n) {
  if (n >= text.size()) return text.size();
  while (n > 0 && continuation(static_cast<unsigned char>(text[n]))) --n;
  return n;
}

}  // namespace hero
