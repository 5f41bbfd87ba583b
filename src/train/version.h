#pragma once
#include <string>

namespace hero {

/// Versions of this program and its libraries. Equal versions compute identical results.
std::string program_version();

}  // namespace hero
