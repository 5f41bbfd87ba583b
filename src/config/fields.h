#pragma once
// The one list of knobs, and what can be done with a single one of them: read it, set it within its bounds,
// write it as TOML. Everything that names a key walks this list.
#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "config/config.h"

namespace hero {

/// A value on its way into or out of a field.
using Scalar = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>>;

/// One knob. `value` points into the Config that fields() was given. Numbers have a `min`, integers and
/// lists of them also a `max`, strings their `choices`.
struct Field {
  std::string key;  ///< "router.window"
  std::variant<int64_t*, double*, bool*, std::string*, std::vector<int64_t>*> value;
  std::string help;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  ///< min itself is not allowed
  bool below_max = false;  ///< max itself is not allowed
  std::vector<std::string> choices = {};
  std::vector<std::string> aliases = {};  ///< other names that files and flags may use
};

/// Every knob of `config`, section by section.
std::vector<Field> fields(Config& config);

/// The field that `key` or one of its aliases names; nullptr when none does.
const Field* find_field(const std::vector<Field>& list, const std::string& key);

/// The known key with the smallest edit distance from `key`; a key of the right name in a wrong section
/// counts 1.
std::string nearest_key(const std::vector<Field>& list, const std::string& key);

/// True where some key begins with `name.`.
bool is_section(const std::vector<Field>& list, const std::string& name);

Scalar read(const Field& field);

/// Sets the field; an integer serves for a float. False, and nothing changed, when the type, the bounds or
/// the choices do not allow the value, or when it is not finite.
bool assign(const Field& field, const Scalar& value);

/// The value as a TOML literal; a float reads back equal and never looks like an integer.
std::string literal(const Scalar& value);

/// "integer", "float", "bool", "string" or "integers".
std::string type_name(const Field& field);

/// What the field takes, for messages: "an integer from 0 to 2147483647", "one of baseline, hero".
std::string expected(const Field& field);

/// Bounds or choices, for --help: ">= 0", "> 0", "baseline|hero". The general limit of integers is left out.
std::string bounds(const Field& field);

}  // namespace hero
