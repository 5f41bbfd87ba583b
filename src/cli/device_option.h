#pragma once
#include "cli/choice_option.h"

namespace hero {

/// Adds --device, with a value for choose_device.
inline void add_device_option(Command& command, DeviceChoice& device) {
  add_choice_option<DeviceChoice>(command, "--device", device, "device; auto: cuda if available, else cpu")
      .one_of(names_of<DeviceChoice>())
      .show_default(name_of(device));
}

}  // namespace hero
