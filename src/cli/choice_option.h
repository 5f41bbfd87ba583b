#pragma once
#include <string>

#include "cli/command.h"
#include "config/choices.h"

namespace hero {

/// Adds an option that takes names of the enum E and stores the value in `value`, an E or a std::optional<E>.
/// The caller lists the names that it accepts with one_of.
template <Choice E, class Value>
Option add_choice_option(Command& command, const std::string& name, Value& value, const std::string& help) {
  return command.add_option<std::string>(
      name,
      [&value](const std::string& text) {
        const auto choice = find_choice<E>(text);
        if (!choice) return;
        const E found = *choice;
        value = found;
      },
      help);
}

}  // namespace hero
