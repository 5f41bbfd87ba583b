#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace hero {

/// The folder of the configurations that come with the program.
std::filesystem::path config_folder();

/// The TOML file that `name` stands for: a path, or the name without ".toml" of a file in one of `folders`,
/// the first that has it. UserError that begins with `option` and says what was expected.
std::filesystem::path find_config(const std::string& option, const std::string& name,
                                  const std::vector<std::filesystem::path>& folders);

}  // namespace hero
