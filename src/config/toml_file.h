#pragma once
// Reads TOML files as a flat list of dotted keys with line numbers.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/fields.h"

namespace hero {

/// One key of a file. `value` is empty for unsupported types (tables, mixed arrays, dates), and for an array
/// of tables that are no phases of data.phase.
struct TomlEntry {
  std::string key;  ///< "router.window"
  int64_t line = 0;
  std::optional<FieldValue> value;
  std::string display;  ///< the value for messages, on one line
  std::string detail;   ///< what is wrong with a table of an array; empty: nothing
};

/// Entries of a file in line order; an empty table is an entry without a value. UserError for an unreadable
/// file or invalid TOML, with the position.
std::vector<TomlEntry> read_toml(const std::string& path);

/// A value in TOML syntax, as the flag `place` has it; nullopt if it is invalid or has an unsupported type.
std::optional<FieldValue> parse_toml_value(const std::string& text, const std::string& place);

}  // namespace hero
