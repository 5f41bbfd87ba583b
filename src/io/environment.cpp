#include "io/environment.h"

#include <cstdlib>
#include <string>

#include "io/error.h"

namespace hero {

bool environment_flag(const char* name) {
  const char* value = std::getenv(name);
  const std::string setting = value ? value : "";
  if (!setting.empty() && setting != "0" && setting != "1")
    throw UserError(std::string(name) + ": found " + setting + ", expected 0 or 1");
  return setting == "1";
}

}  // namespace hero
