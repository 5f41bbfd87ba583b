#pragma once
// Runs Python modules, which draw figures and write HTML pages.
#include <string>
#include <vector>

namespace hero {

/// Replaces this process with `python -m MODULE ARGUMENTS...` and adds the hero_moe package to PYTHONPATH.
/// HERO_PYTHON selects the interpreter. RunError if it cannot be started.
[[noreturn]] void exec_python(const std::string& module, const std::vector<std::string>& arguments);

}  // namespace hero
