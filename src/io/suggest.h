#pragma once
// Suggestions for misspelled names in error messages.
#include <cstddef>
#include <string_view>
#include <vector>

namespace hero {

/// Levenshtein distance: the fewest inserted, deleted and replaced bytes that turn `a` into `b`. Takes time
/// proportional to the product of their lengths.
size_t edit_distance(std::string_view a, std::string_view b);

/// The name in `known` with the smallest edit distance to `name`, the first of several; "" if that distance
/// is more than a third of the length of `name`, or if `name` has more than 64 bytes.
std::string_view similar_name(const std::vector<std::string_view>& known, std::string_view name);

}  // namespace hero
