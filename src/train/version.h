#pragma once
#include <string>

namespace hero {

/// This program and what it is linked with, such that equal texts mean equal arithmetic.
std::string program_version();

}  // namespace hero
