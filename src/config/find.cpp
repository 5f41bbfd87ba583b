#include "config/find.h"

#include <set>

#include "io/error.h"

namespace hero {

namespace fs = std::filesystem;

namespace {

std::string names_in(const std::vector<fs::path>& folders) {
  std::set<std::string> names;
  for (const auto& folder : folders) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none)) {
      if (entry.path().extension() == ".toml") names.insert(entry.path().stem().string());
    }
  }
  std::string out;
  for (const auto& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

}  // namespace

fs::path config_folder() { return HERO_CONFIG_DIR; }

fs::path find_config(const std::string& option, const std::string& name,
                     const std::vector<fs::path>& folders) {
  if (fs::is_regular_file(name)) return name;
  const bool is_path = name.find('/') != std::string::npos || name.ends_with(".toml");
  for (const auto& folder : folders) {
    const auto file = folder / (name + ".toml");
    if (!is_path && fs::is_regular_file(file)) return file;
  }
  const auto names = is_path ? "" : names_in(folders);
  throw UserError(option + ": " + name + ": no such file, expected a TOML file" +
                  (names.empty() ? "" : " or one of these names: " + names));
}

}  // namespace hero
