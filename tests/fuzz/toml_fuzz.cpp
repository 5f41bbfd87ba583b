// Configuration files.
#include "config/config.h"
#include "config/toml_file.h"
#include "fuzz/checks.h"
#include "fuzz/targets.h"

namespace hero::fuzz {

bool read_toml(std::string_view bytes) {
  const std::string path = input_file("fuzzed.toml", bytes);
  Config config;
  const bool valid = accepted(bytes, [&](std::string_view) { config = load_config({path}, {}); }, path);
  if (!valid) return false;
  const std::string text = dump(config);
  require(dump(load_config({input_file("dumped.toml", text)}, {})) == text,
          "a configuration that its dump changes");
  try {
    check(config);
  } catch (const UserError& error) {
    check_message(error.what(), "");
  }
  return true;
}

}  // namespace hero::fuzz
