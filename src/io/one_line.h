#pragma once
#include <cstddef>
#include <string>

namespace hero {

/// `text` on one line, truncated to `longest` bytes.
std::string one_line(std::string text, size_t longest = 60);

}  // namespace hero
