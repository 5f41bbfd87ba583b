#pragma once
// The reader of JSON from files and HTTP requests, which may be invalid or hostile. Only messages between
// processes of one run are parsed without it.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace hero {

/// Where a JSON text was read, for messages: "FILE: byte 7" or "FILE: line 3, byte 70". Only for arguments:
/// refers to the name, does not copy it.
struct JsonSource {
  std::string_view file;
  int64_t line = 0;   ///< one-based line of a JSON Lines file; 0: the text is no line
  size_t offset = 0;  ///< byte offset of the text in the file
};

/// Parses one UTF-8 JSON value without duplicate keys, numbers outside the range of a double, or more than
/// 100 levels of nesting, so that code may recurse over the result. UserError names the file, the line, the
/// byte or key, the found and the expected value.
nlohmann::json parse_json(std::string_view text, const JsonSource& source);

/// The same, preserving the order of keys. Takes time quadratic in the keys of an object.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const JsonSource& source);

/// The same as parse_json, but null for a text that it rejects: for files that may be incomplete.
nlohmann::json parse_json_or_null(std::string_view text);

/// Formats a value for a message: one line of ASCII, at most 80 characters.
std::string format_value(const nlohmann::json& value);

}  // namespace hero
