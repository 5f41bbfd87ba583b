// GPT-2's alphabet: every byte has a letter of its own. Printable Latin-1 characters stand for their own
// byte, the other 68 bytes are U+0100, U+0101, ... in their order.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace hero {

/// The letter of each byte, in UTF-8.
const std::array<std::string, 256>& byte_letters();

/// The bytes that the letters of `token` (valid UTF-8) stand for; nothing when it holds another character.
std::optional<std::string> bytes_of_letters(std::string_view token);

}  // namespace hero
