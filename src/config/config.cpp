// Writes a Config as text. Generic over fields().
#include "config/config.h"

#include <algorithm>

#include "config/fields.h"
#include "config/overrides.h"

namespace hero {
namespace {

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size() + 2, width), ' ');
  return text;
}

}  // namespace

Config load_config(const std::vector<std::string>& files, const std::vector<std::string>& flags,
                   const Config& base) {
  return ConfigOverrides(files, flags).applied_to(base);
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
