#include "tokenizer/byte_level.h"

#include <unordered_map>

namespace hero {

namespace {

bool own_letter(int byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD); }

}  // namespace

const std::array<std::string, 256>& byte_letters() {
  static const auto letters = [] {
    std::array<std::string, 256> made;
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const int c = own_letter(byte) ? byte : next++;
      if (c >= 0x80) made[byte].push_back(static_cast<char>(0xC0 | c >> 6));
      made[byte].push_back(static_cast<char>(c < 0x80 ? c : 0x80 | (c & 0x3F)));
    }
    return made;
  }();
  return letters;
}

std::optional<std::string> bytes_of_letters(std::string_view token) {
  static const auto bytes = [] {
    std::unordered_map<std::string_view, char> made;
    for (int byte = 0; byte < 256; ++byte) made[byte_letters()[byte]] = static_cast<char>(byte);
    return made;
  }();
  std::string text;
  for (std::size_t i = 0; i < token.size();) {
    const std::size_t length =
        static_cast<unsigned char>(token[i]) < 0x80 ? 1 : 2;  // longer ones are no letters
    const auto found = bytes.find(token.substr(i, length));
    if (found == bytes.end()) return std::nullopt;
    text += found->second;
    i += length;
  }
  return text;
}

}  // namespace hero
