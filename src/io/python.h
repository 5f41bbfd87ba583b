#pragma once
// Runs Python modules, which draw figures, write HTML pages and render chat templates.
#include <string>
#include <vector>

namespace hero {

/// The interpreter: HERO_PYTHON, or else the one of the build.
std::string python_program();
/// PYTHONPATH with the hero_moe package in front.
std::string python_search_path();

/// Replaces this process with `python -m MODULE ARGUMENTS...` and adds the hero_moe package to PYTHONPATH.
/// HERO_PYTHON selects the interpreter. RunError if it cannot be started.
[[noreturn]] void exec_python(const std::string& module, const std::vector<std::string>& arguments);

}  // namespace hero
