#pragma once
// TOML files as a flat list of keys with their lines, whatever mixture of [sections] and dotted keys wrote
// them.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/fields.h"

namespace hero {

/// One key of a file. `value` is empty for what no knob can hold (tables, mixed arrays, dates).
struct TomlEntry {
  std::string key;  ///< "router.window"
  int64_t line = 0;
  std::optional<Scalar> value;
  std::string shown;  ///< the value as messages show it, one short line
};

/// The entries of a file in the order of its lines; an empty table is an entry without value. UserError for a
/// file that cannot be read or is no TOML, with the parser's position.
std::vector<TomlEntry> read_toml(const std::string& path);

/// `text` on one line, cut at `longest` bytes.
std::string one_line(std::string text, size_t longest = 60);

}  // namespace hero
