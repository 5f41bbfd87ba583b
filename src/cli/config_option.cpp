#include "cli/config_option.h"

#include "config/find.h"

namespace hero {

void add_config_option(CLI::App& command, std::vector<std::string>& files) {
  command
      .add_option("--config", files,
                  "TOML files, or names of the program's own such as small-qwen3 and hero; later files "
                  "override earlier ones")
      ->transform(CLI::Validator(
          [](std::string& name) {
            name = find_config("--config", name, {config_folder()}).string();
            return std::string();
          },
          ""));
}

}  // namespace hero
