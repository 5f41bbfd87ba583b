// Reads files and flags into a Config, and writes a Config as text. Generic over fields().
#include "config/config.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "config/fields.h"
#include "config/toml_file.h"
#include "io/error.h"

namespace hero {
namespace {

// `place` is "a.toml:3: router.window" or "--router.window".
[[noreturn]] void reject(const std::string& place, const std::string& found, const std::string& expected) {
  throw UserError(place + ": found " + found + ", expected " + expected);
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
  if (std::holds_alternative<bool*>(field.value) && (text == "true" || text == "false"))
    return text == "true";
  return text;
}

void set_text(Config& config, const std::string& place, const std::string& key, const std::string& text) {
  const std::vector<Field> list = fields(config);
  const Field& field = require_field(list, place, key);
  if (!assign(field, parse(field, text))) {
    reject(place, text.empty() ? "an empty value" : one_line(text), expected(field));
  }
}

void set_flag(Config& config, const std::string& flag) {
  const size_t equals = flag.find('=');
  if (!flag.starts_with("--") || equals == 2) reject(one_line(flag), "no key", "--section.key=value");
  const std::string place = one_line(flag.substr(0, equals));
  const std::string key = flag.substr(2, equals - 2);
  if (equals == std::string::npos) {
    require_field(fields(config), place, key);
    reject(place, "no value", place + "=value");
  }
  set_text(config, place, key, flag.substr(equals + 1));
}

void load_file(Config& config, const std::string& path) {
  const std::vector<Field> list = fields(config);
  std::map<const Field*, const TomlEntry*> given;
  const std::vector<TomlEntry> entries = read_toml(path);
  for (const TomlEntry& entry : entries) {
    const std::string place = path + ":" + std::to_string(entry.line) + ": " + one_line(entry.key);
    if (is_section(list, entry.key)) {
      if (entry.display == "a table") continue;
      reject(place, entry.display, "the section [" + entry.key + "]");
    }
    const Field& field = require_field(list, place, entry.key);
    const auto [first, inserted] = given.emplace(&field, &entry);
    if (!inserted) {
      throw UserError(place + ": duplicate of " + first->second->key + " in line " +
                      std::to_string(first->second->line));
    }
    if (!entry.value || !assign(field, *entry.value)) reject(place, entry.display, expected(field));
  }
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size() + 2, width), ' ');
  return text;
}

}  // namespace

Config load_config(const std::vector<std::string>& files, const std::vector<std::string>& flags,
                   const Config& base) {
  Config config = base;
  for (const std::string& file : files) load_file(config, file);
  for (const std::string& flag : flags) set_flag(config, flag);
  return config;
}

std::string dump(const Config& config) {
  Config copy = config;
  std::string out, section;
  for (const Field& field : fields(copy)) {
    const size_t dot = field.key.find('.');
    if (field.key.substr(0, dot) != section) {
      out += out.empty() ? "" : "\n";
      section = field.key.substr(0, dot);
      out += "[" + section + "]\n";
    }
    out += field.key.substr(dot + 1) + " = " + literal(read(field)) + "\n";
  }
  return out;
}

std::string field_help() {
  Config defaults;
  std::string out, section;
  for (const Field& field : fields(defaults)) {
    if (const auto own = field.key.substr(0, field.key.find('.')); own != section) {
      section = own;
      out += "\n[" + section + "]\n";
    }
    out += padded("  --" + field.key, 38) + padded(type_name(field), 10) + literal(read(field)) + "\n";
    std::string help = field.help;
    if (const std::string range = bounds(field); !range.empty()) help += " [" + range + "]";
    for (const std::string& alias : field.aliases) help += " (also " + alias + ")";
    if (field.has(kMayChangeOnResume)) help += " (may change on resume)";
    out += "      " + help + "\n";
  }
  return out;
}

std::vector<std::string> differences(const Config& a, const Config& b) {
  return differences(a, b, [](const Field&) { return true; });
}

std::vector<std::string> differences(const Config& a, const Config& b, const FieldFilter& compared) {
  Config left = a, right = b;
  const std::vector<Field> of_left = fields(left), of_right = fields(right);
  std::vector<std::string> out;
  for (size_t i = 0; i < of_left.size(); ++i) {
    if (!compared(of_left[i])) continue;
    const FieldValue from = read(of_left[i]), to = read(of_right[i]);
    if (from != to) out.push_back(of_left[i].key + ": " + literal(from) + " -> " + literal(to));
  }
  return out;
}

}  // namespace hero
