#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "io/error.h"

namespace hero {

/// Size of a text for ICU. UserError if it is too large.
inline int32_t icu_size(std::string_view text) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  if (text.size() > static_cast<std::size_t>(kMost)) {
    throw UserError("found a document of " + std::to_string(text.size()) + " bytes, expected at most " +
                    std::to_string(kMost) + " with the normalizer or pattern of this tokenizer");
  }
  return static_cast<int32_t>(text.size());
}

}  // namespace hero
