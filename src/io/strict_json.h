#pragma once
// Strict parsing of untrusted JSON files.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace hero {

/// Parses UTF-8 JSON without duplicate keys, numbers outside the range of a double, or more than 100 levels
/// of nesting, so that code may recurse over the result. `offset`: byte offset of the text in its file.
/// UserError names the file, the byte or key, the found and the expected value.
nlohmann::json parse_strict(std::string_view text, const std::string& file, size_t offset = 0);

/// Formats a value for a message: one line of ASCII, at most 80 characters.
std::string format_value(const nlohmann::json& value);

}  // namespace hero
