// Parses files and flags. Generic over fields().
#include "config/overrides.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "config/toml_file.h"
#include "io/error.h"
#include "io/one_line.h"

namespace hero {
namespace {

// `place` is "a.toml:3: router.window" or "--router.window".
[[noreturn]] void reject(const std::string& place, const std::string& found, const std::string& expected) {
  throw UserError(place + ": found " + found + ", expected " + expected);
}

// Rejects a key of a table where an option has another type, such as [data.phase].
void reject_table(const std::vector<Field>& list, const std::string& place, const std::string& key) {
  for (const Field& field : list) {
    if (key.starts_with(field.key + ".")) reject(place, "a table " + field.key, expected(field));
  }
}

const Field& require_field(const std::vector<Field>& list, const std::string& place, const std::string& key) {
  const Field* field = find_field(list, key);
  if (!field) throw UserError(place + ": unknown key; did you mean " + nearest_key(list, key) + "?");
  return *field;
}

// Parses "[0, 3]" or "0,3" as a list; returns any other text unchanged.
FieldValue parse_integers(const std::string& text) {
  std::string inner = text.starts_with('[') && text.ends_with(']') ? text.substr(1, text.size() - 2) : text;
  std::erase(inner, ' ');
  std::vector<int64_t> list;
  for (size_t begin = 0; begin < inner.size();) {
    const size_t end = std::min(inner.find(',', begin), inner.size());
    int64_t value = 0;
    const auto result = std::from_chars(inner.data() + begin, inner.data() + end, value);
    if (result.ec != std::errc() || result.ptr != inner.data() + end || end + 1 == inner.size()) return text;
    list.push_back(value);
    begin = end + 1;
  }
  return list;
}

// Parses "a,b", "[a, b]" or "[\"a\", \"b\"]" as a list.
FieldValue parse_texts(const std::string& text) {
  std::string_view inner = text;
  if (inner.starts_with('[') && inner.ends_with(']')) inner = inner.substr(1, inner.size() - 2);
  const auto trim = [](std::string_view word) {
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    if (word.size() >= 2 && word.starts_with('"') && word.ends_with('"'))
      word = word.substr(1, word.size() - 2);
    return std::string(word);
  };
  std::vector<std::string> list;
  if (trim(inner).empty()) return list;
  for (size_t begin = 0; begin <= inner.size();) {
    const size_t end = std::min(inner.find(',', begin), inner.size());
    list.push_back(trim(inner.substr(begin, end - begin)));
    begin = end + 1;
  }
  return list;
}

// Parses the text of a flag as the field's type. Unparsable text stays a string, which only a string field
// accepts.
FieldValue parse(const Field& field, const std::string& text) {
  const char* const end = text.data() + text.size();
  auto number = [&](auto value) -> FieldValue {
    const auto result = std::from_chars(text.data(), end, value);
    if (result.ec == std::errc() && result.ptr == end) return value;
    return text;
  };
  if (std::holds_alternative<int64_t*>(field.value)) return number(int64_t{0});
  if (std::holds_alternative<double*>(field.value)) return number(0.0);
  if (std::holds_alternative<std::vector<int64_t>*>(field.value)) return parse_integers(text);
  if (std::holds_alternative<std::vector<std::string>*>(field.value)) return parse_texts(text);
  if (std::holds_alternative<bool*>(field.value) && (text == "true" || text == "false"))
    return text == "true";
  if (std::holds_alternative<std::vector<DataPhase>*>(field.value))
    return parse_toml_value(text, "--" + field.key).value_or(text);
  return text;
}

}  // namespace

ConfigOverrides::ConfigOverrides(const std::vector<std::string>& files, const std::vector<std::string>& flags)
    : has_files_(!files.empty()) {
  Config parsed;
  const std::vector<Field> list = fields(parsed);
  for (const std::string& file : files) add_file(list, file);
  from_files_ = values_.size();
  for (const std::string& flag : flags) add_flag(list, flag);
}

void ConfigOverrides::add_file(const std::vector<Field>& list, const std::string& path) {
  std::map<const Field*, const TomlEntry*> given;
  const std::vector<TomlEntry> entries = read_toml(path);
  for (const TomlEntry& entry : entries) {
    const std::string place = path + ":" + std::to_string(entry.line) + ": " + one_line(entry.key);
    if (is_section(list, entry.key)) {
      if (entry.display == "a table") continue;
      reject(place, entry.display, "the section [" + entry.key + "]");
    }
    reject_table(list, place, entry.key);
    const Field& field = require_field(list, place, entry.key);
    const auto [first, inserted] = given.emplace(&field, &entry);
    if (!inserted) {
      throw UserError(place + ": duplicate of " + first->second->key + " in line " +
                      std::to_string(first->second->line));
    }
    const bool valid = entry.value && assign(field, *entry.value);
    if (!valid) {
      const std::string detail = entry.detail.empty() ? "" : " whose " + entry.detail;
      reject(place, entry.display + detail, expected(field));
    }
    values_.emplace_back(field.key, read(field));
  }
}

void ConfigOverrides::add_flag(const std::vector<Field>& list, const std::string& flag) {
  const size_t equals = flag.find('=');
  if (!flag.starts_with("--") || equals == 2) reject(one_line(flag), "no key", "--section.key=value");
  const std::string place = one_line(flag.substr(0, equals));
  const Field& field = require_field(list, place, flag.substr(2, equals - 2));
  if (equals == std::string::npos) reject(place, "no value", place + "=value");
  const std::string text = flag.substr(equals + 1);
  if (!assign(field, parse(field, text)))
    reject(place, text.empty() ? "an empty value" : one_line(text), expected(field));
  values_.emplace_back(field.key, read(field));
}

Config ConfigOverrides::applied_to(Config base) const {
  const std::vector<Field> list = fields(base);
  for (const auto& [key, value] : values_) assign(*find_field(list, key), value);
  if (!sets(kWarmupSteps)) base.optim.warmup_steps = std::min(base.optim.warmup_steps, base.train.steps);
  return base;
}

bool ConfigOverrides::sets(std::string_view key) const {
  return std::ranges::any_of(values_, [&](const auto& value) { return value.first == key; });
}

bool ConfigOverrides::flag_sets(std::string_view key) const {
  return std::any_of(values_.begin() + static_cast<std::ptrdiff_t>(from_files_), values_.end(),
                     [&](const auto& value) { return value.first == key; });
}

}  // namespace hero
