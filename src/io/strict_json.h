#pragma once
// JSON out of files that anybody may have written.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace hero {

/// Parses UTF-8 JSON in which no object names a key twice, no number is beyond a double, and values are
/// nested at most 100 deep, so that whatever walks the result may recurse. `offset`: the text's place in its
/// file. UserError, one line: the file, the byte or key, what was found, what was expected.
nlohmann::json parse_strict(std::string_view text, const std::string& file, size_t offset = 0);

/// A value in a message: one line of ASCII, at most 80 characters.
std::string shown(const nlohmann::json& value);

}  // namespace hero
