#pragma once
#include <cstddef>
#include <string_view>

namespace hero {

/// Whether `given` equals `secret`. The run time depends only on the length of `given`.
inline bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  volatile unsigned char difference = given.size() != secret.size();
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char other = secret.empty() ? '\0' : secret[i % secret.size()];
    difference = difference | static_cast<unsigned char>(given[i] ^ other);
  }
  return difference == 0;
}

}  // namespace hero
