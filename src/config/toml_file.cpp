// toml++ is header-only and slow to compile, so only this file includes it.
#include "config/toml_file.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "io/error.h"

namespace hero {
namespace {

std::string slurp(const std::string& path) {
  const std::string expected = ", expected a TOML file";
  if (std::filesystem::is_directory(path)) throw UserError(path + ": found a directory" + expected);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError(path + ": cannot be read: " + std::strerror(errno) + expected);
  return {std::istreambuf_iterator<char>(file), {}};
}

TomlEntry entry(const std::string& key, const toml::node& node) {
  TomlEntry out{key, static_cast<int64_t>(node.source().begin.line), {}, {}};
  if (const auto* integer = node.as_integer()) {
    out.value = integer->get();
  } else if (const auto* floating = node.as_floating_point()) {
    out.value = floating->get();
  } else if (const auto* boolean = node.as_boolean()) {
    out.value = boolean->get();
  } else if (const auto* text = node.as_string()) {
    out.value = text->get();
  } else if (const auto* list = node.as_array()) {
    std::vector<int64_t> values;
    for (const auto& element : *list) {
      if (const auto* integer = element.as_integer()) values.push_back(integer->get());
    }
    if (values.size() == list->size()) out.value = std::move(values);
  }
  if (node.is_array()) {
    out.display = "an array";
  } else if (node.is_table()) {
    out.display = "a table";
  } else {
    std::ostringstream text;
    node.visit([&](const auto& value) { text << value; });
    out.display = one_line(text.str());
  }
  return out;
}

void flatten(const std::string& prefix, const toml::table& table, std::vector<TomlEntry>& out) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    if (const auto* inner = node.as_table(); inner && !inner->empty()) {
      flatten(key + ".", *inner, out);
    } else {
      out.push_back(entry(key, node));
    }
  }
}

}  // namespace

std::vector<TomlEntry> read_toml(const std::string& path) {
  const std::string text = slurp(path);
  std::vector<TomlEntry> out;
  try {
    flatten("", toml::parse(text, path), out);
  } catch (const toml::parse_error& error) {
    const auto at = error.source().begin;
    throw UserError(path + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) +
                    ": invalid TOML: " + one_line(std::string(error.description()), 200));
  }
  std::ranges::stable_sort(out, {}, &TomlEntry::line);
  return out;
}

std::string one_line(std::string text, size_t longest) {
  std::ranges::replace_if(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text.size() <= longest ? text : text.substr(0, longest - 3) + "...";
}

}  // namespace hero
