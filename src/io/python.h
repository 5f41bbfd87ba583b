#pragma once
// What Python does for the program: figures and pages.
#include <string>
#include <vector>

namespace hero {

/// Turns this process into `python -m MODULE ARGUMENTS...`, with the package beside this program in reach:
/// the environment's Python, or the one that HERO_PYTHON names. RunError where it cannot be started.
[[noreturn]] void become_python(const std::string& module, const std::vector<std::string>& arguments);

}  // namespace hero
