#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace hero {

/// Declares --config, whose values load_config takes; names are those of config_folder().
void add_config_option(CLI::App& command, std::vector<std::string>& files);

}  // namespace hero
