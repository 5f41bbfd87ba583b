// GPT-2's byte-level alphabet: printable Latin-1 characters represent their own byte, the other 68 bytes are
// U+0100, U+0101, ... in order.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace hero {

/// The character of each byte, in UTF-8.
const std::array<std::string, 256>& bytes_to_unicode();

/// Inverse mapping of `token` (valid UTF-8); nullopt if it contains any other character.
std::optional<std::string> unicode_to_bytes(std::string_view token);

}  // namespace hero
