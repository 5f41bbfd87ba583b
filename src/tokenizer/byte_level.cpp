#include "tokenizer/byte_level.h"

#include <unordered_map>

namespace hero {

namespace {

bool is_printable(int byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD); }

}  // namespace

const std::array<std::string, 256>& bytes_to_unicode() {
  static const auto letters = [] {
    std::array<std::string, 256> table;
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const int c = is_printable(byte) ? byte : next++;
      if (c >= 0x80) table[byte].push_back(static_cast<char>(0xC0 | c >> 6));
      table[byte].push_back(static_cast<char>(c < 0x80 ? c : 0x80 | (c & 0x3F)));
    }
    return table;
  }();
  return letters;
}

std::optional<std::string> unicode_to_bytes(std::string_view token) {
  static const auto bytes = [] {
    std::unordered_map<std::string_view, char> table;
    for (int byte = 0; byte < 256; ++byte) table[bytes_to_unicode()[byte]] = static_cast<char>(byte);
    return table;
  }();
  std::string text;
  for (std::size_t i = 0; i < token.size();) {
    const std::size_t length =
        static_cast<unsigned char>(token[i]) < 0x80 ? 1 : 2;  // longer ones are not in the table
    const auto found = bytes.find(token.substr(i, length));
    if (found == bytes.end()) return std::nullopt;
    text += found->second;
    i += length;
  }
  return text;
}

}  // namespace hero
