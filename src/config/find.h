#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace hero {

/// Folder of the bundled configurations.
std::filesystem::path config_folder();

/// Resolves `name`: a path, or the name without ".toml" of a file in the first of `folders` that has it.
/// UserError begins with `option`.
std::filesystem::path find_config(const std::string& option, const std::string& name,
                                  const std::vector<std::filesystem::path>& folders);

}  // namespace hero
