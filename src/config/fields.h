#pragma once
// The list of all options, and operations on one option: read it, set it within its bounds, write it as TOML.
// All generic code uses this list.
#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "config/config.h"

namespace hero {

/// Value of a field.
using FieldValue = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>>;

/// One option. `value` points into the Config passed to fields(). Numbers have a `min`, integers and integer
/// lists also a `max`, strings `choices`.
struct Field {
  std::string key;  ///< "router.window"
  std::variant<int64_t*, double*, bool*, std::string*, std::vector<int64_t>*> value;
  std::string help;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  ///< min is exclusive
  bool below_max = false;  ///< max is exclusive
  std::vector<std::string> choices = {};
  std::vector<std::string> aliases = {};  ///< alternative keys in files and flags
};

/// All options of `config`, by section.
std::vector<Field> fields(Config& config);

/// The field with this key or alias; nullptr if there is none.
const Field* find_field(const std::vector<Field>& list, const std::string& key);

/// The key with the smallest edit distance to `key`. The right name in the wrong section has distance 1.
std::string nearest_key(const std::vector<Field>& list, const std::string& key);

/// True if a key begins with `name.`.
bool is_section(const std::vector<Field>& list, const std::string& name);

FieldValue read(const Field& field);

/// Sets the field; integers convert to float. Returns false and changes nothing if the type, bounds or
/// choices do not allow the value, or if it is not finite.
bool assign(const Field& field, const FieldValue& value);

/// TOML literal of the value. Floats round-trip exactly and never look like integers.
std::string literal(const FieldValue& value);

/// "integer", "float", "bool", "string" or "integers".
std::string type_name(const Field& field);

/// Allowed values, for messages: "an integer from 0 to 2147483647", "one of baseline, hero".
std::string expected(const Field& field);

/// Bounds or choices, for --help: ">= 0", "> 0", "baseline|hero". Omits the general limit of integers.
std::string bounds(const Field& field);

}  // namespace hero
