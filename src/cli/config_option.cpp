#include "cli/config_option.h"

#include "config/find.h"

namespace hero {

void add_config_option(Command& command, std::vector<std::string>& files) {
  command
      .add_option(
          "--config", files,
          "TOML files or built-in names such as small-qwen3 and hero; later files override earlier ones")
      .convert(
          [](const std::string& name) { return find_config("--config", name, {config_folder()}).string(); });
}

}  // namespace hero
