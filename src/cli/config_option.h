#pragma once
#include <string>
#include <vector>

#include "cli/command.h"

namespace hero {

/// Adds --config, with values for load_config; built-in names are the files of config_folder().
void add_config_option(Command& command, std::vector<std::string>& files);

}  // namespace hero
