#include "io/one_line.h"

#include <algorithm>

namespace hero {

std::string one_line(std::string text, size_t longest) {
  std::ranges::replace_if(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text.size() <= longest ? text : text.substr(0, longest - 3) + "...";
}

}  // namespace hero
