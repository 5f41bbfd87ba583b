// Types, bounds and text form of field values, and lookup by key or attributes.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "config/data_phases.h"
#include "config/fields.h"
#include "io/one_line.h"
#include "io/suggest.h"

namespace hero {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

std::string shortest(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

std::string whole(double bound) { return std::to_string(static_cast<int64_t>(bound)); }

bool within(const Field& field, double value) {
  const bool low = field.above_min ? value > field.min : value >= field.min;
  const bool high = field.below_max ? value < field.max : value <= field.max;
  return low && high;
}

bool is_printable(const std::string& text) {
  return std::ranges::none_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

bool is_allowed(const Field& field, const std::string& text) {
  if (field.choices.empty()) return is_printable(text);
  return std::ranges::find(field.choices, text) != field.choices.end();
}

// A TOML basic string. Text without control characters needs only these two escapes.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

// An empty list has no type in TOML.
bool is_empty_list(const FieldValue& value) {
  const auto* integers = std::get_if<std::vector<int64_t>>(&value);
  return integers && integers->empty();
}

std::string leaf(const std::string& key) { return key.substr(key.rfind('.') + 1); }

std::string joined(const std::vector<std::string>& words, const std::string& between) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : between) + word;
  return out;
}

}  // namespace

const Field* find_field(const std::vector<Field>& list, const std::string& key) {
  for (const Field& field : list) {
    if (field.key == key || std::ranges::find(field.aliases, key) != field.aliases.end()) return &field;
  }
  return nullptr;
}

std::string nearest_key(const std::vector<Field>& list, const std::string& key) {
  std::string nearest;
  size_t best = std::numeric_limits<size_t>::max();
  auto consider = [&](const std::string& known) {
    const size_t distance = std::min(edit_distance(key, known), edit_distance(leaf(key), leaf(known)) + 1);
    if (distance < best) {
      best = distance;
      nearest = known;
    }
  };
  for (const Field& field : list) {
    consider(field.key);
    for (const std::string& alias : field.aliases) consider(alias);
  }
  return nearest;
}

std::vector<std::string> keys_with(const FieldFilter& selected) {
  Config defaults;
  std::vector<std::string> keys;
  for (const Field& field : fields(defaults)) {
    if (selected(field)) keys.push_back(field.key);
  }
  return keys;
}

std::vector<std::string> keys_with(uint32_t wanted, uint32_t unwanted) {
  return keys_with([=](const Field& field) { return field.has(wanted, unwanted); });
}

void copy_values(const Config& from, Config& to, const FieldFilter& selected) {
  Config source = from;
  const std::vector<Field> of_source = fields(source), of_target = fields(to);
  for (size_t i = 0; i < of_source.size(); ++i) {
    if (!selected(of_source[i])) continue;
    const FieldValue value = read(of_source[i]);
    std::visit(Overloaded{
                   [&](auto* target) { *target = std::get<std::remove_pointer_t<decltype(target)>>(value); },
                   [&](const ChoiceRef& target) { target.set(target.member, std::get<std::string>(value)); },
               },
               of_target[i].value);
  }
}

bool is_section(const std::vector<Field>& list, const std::string& name) {
  return std::ranges::any_of(list, [&](const Field& field) { return field.key.starts_with(name + "."); });
}

FieldValue read(const Field& field) {
  return std::visit(Overloaded{
                        [](const auto* value) { return FieldValue(*value); },
                        [](const ChoiceRef& value) { return FieldValue(value.get(value.member)); },
                    },
                    field.value);
}

bool assign(const Field& field, const FieldValue& value) {
  return std::visit(Overloaded{
                        [&](int64_t* to) {
                          const auto* from = std::get_if<int64_t>(&value);
                          if (!from || !within(field, static_cast<double>(*from))) return false;
                          *to = *from;
                          return true;
                        },
                        [&](double* to) {
                          const auto* integer = std::get_if<int64_t>(&value);
                          const auto* from = std::get_if<double>(&value);
                          if (!integer && !from) return false;
                          const double given = integer ? static_cast<double>(*integer) : *from;
                          if (!std::isfinite(given) || !within(field, given)) return false;
                          *to = given;
                          return true;
                        },
                        [&](bool* to) {
                          const auto* from = std::get_if<bool>(&value);
                          if (from) *to = *from;
                          return from != nullptr;
                        },
                        [&](std::string* to) {
                          const auto* from = std::get_if<std::string>(&value);
                          if (!from || !is_allowed(field, *from)) return false;
                          *to = *from;
                          return true;
                        },
                        [&](std::vector<int64_t>* to) {
                          const auto* from = std::get_if<std::vector<int64_t>>(&value);
                          const auto fits = [&](int64_t v) { return within(field, static_cast<double>(v)); };
                          if (!from || !std::ranges::all_of(*from, fits)) return false;
                          *to = *from;
                          return true;
                        },
                        [&](std::vector<std::string>* to) {
                          const auto* from = std::get_if<std::vector<std::string>>(&value);
                          const bool empty = is_empty_list(value);
                          const auto fits = [](const std::string& text) {
                            return !text.empty() && is_printable(text);
                          };
                          if (!empty && (!from || !std::ranges::all_of(*from, fits))) return false;
                          *to = empty ? std::vector<std::string>() : *from;
                          return true;
                        },
                        [&](std::vector<DataPhase>* to) {
                          const auto* from = std::get_if<std::vector<DataPhase>>(&value);
                          const bool empty = is_empty_list(value);
                          if (!empty && (!from || !are_valid_phases(*from))) return false;
                          *to = empty ? std::vector<DataPhase>() : *from;
                          return true;
                        },
                        [&](const ChoiceRef& to) {
                          const auto* from = std::get_if<std::string>(&value);
                          return from && to.set(to.member, *from);
                        },
                    },
                    field.value);
}

std::string literal(const FieldValue& value) {
  return std::visit(Overloaded{
                        [](int64_t v) { return std::to_string(v); },
                        [](double v) {
                          const std::string text = shortest(v);
                          return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
                        },
                        [](bool v) { return std::string(v ? "true" : "false"); },
                        [](const std::string& v) { return quoted(v); },
                        [](const std::vector<int64_t>& v) {
                          std::vector<std::string> words;
                          for (const int64_t i : v) words.push_back(std::to_string(i));
                          return "[" + joined(words, ", ") + "]";
                        },
                        [](const std::vector<std::string>& v) {
                          std::vector<std::string> words;
                          for (const std::string& text : v) words.push_back(quoted(text));
                          return "[" + joined(words, ", ") + "]";
                        },
                        [](const std::vector<DataPhase>& v) { return phases_literal(v); },
                    },
                    value);
}

std::string format_option(const std::string& key, const FieldValue& value) {
  return key + " = " + one_line(literal(value));
}

std::string type_name(const Field& field) {
  static const char* const names[] = {"integer",  "float",   "bool",   "string",
                                      "integers", "strings", "tables", "string"};
  return names[field.value.index()];
}

std::string expected(const Field& field) {
  if (!field.choices.empty()) return "one of " + joined(field.choices, ", ");
  if (std::holds_alternative<bool*>(field.value)) return "true or false";
  if (std::holds_alternative<std::string*>(field.value)) return "a string without control characters";
  if (std::holds_alternative<std::vector<int64_t>*>(field.value)) {
    return "a list like [0, 3] of integers from " + whole(field.min) + " to " + whole(field.max);
  }
  if (std::holds_alternative<std::vector<std::string>*>(field.value))
    return "a list like [\"a\", \"b\"] of strings without control characters";
  if (std::holds_alternative<std::vector<DataPhase>*>(field.value))
    return "tables like [{until_step = 800, blend = [\"0.7:a\", \"0.3:b\"]}, {blend = [\"c\"]}], each with "
           "blend and at most one of until_step and until_tokens";
  if (std::holds_alternative<int64_t*>(field.value)) {
    return "an integer from " + whole(field.min) + " to " + whole(field.max);
  }
  std::string text = "a finite number ";
  text += (field.above_min ? "above " : "of at least ") + shortest(field.min);
  if (std::isfinite(field.max)) text += " and below " + shortest(field.max);
  return text;
}

std::string bounds(const Field& field) {
  if (!field.choices.empty()) return joined(field.choices, "|");
  if (std::holds_alternative<bool*>(field.value)) return "true|false";
  if (std::holds_alternative<std::vector<int64_t>*>(field.value)) return "each >= " + whole(field.min);
  if (std::holds_alternative<std::string*>(field.value) ||
      std::holds_alternative<std::vector<std::string>*>(field.value))
    return "no control characters";
  if (std::holds_alternative<std::vector<DataPhase>*>(field.value))
    return "tables of until_step or until_tokens, and blend";
  std::string text = (field.above_min ? "> " : ">= ") + shortest(field.min);
  if (field.below_max) text += ", < " + shortest(field.max);
  return text;
}

}  // namespace hero
