#pragma once
#include <string>

#include "cli/command.h"

namespace hero {

/// Adds --device, with a value for choose_device.
inline void add_device_option(Command& command, std::string& device) {
  command.add_option("--device", device, "device; auto: cuda if available, else cpu")
      .one_of({"auto", "cpu", "cuda"})
      .show_default();
}

}  // namespace hero
