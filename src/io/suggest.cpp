#include "io/suggest.h"

#include <algorithm>

namespace hero {
namespace {

constexpr size_t kMaxLength = 64;  // names come from requests and may have megabytes

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string_view similar_name(const std::vector<std::string_view>& known, std::string_view name) {
  if (name.size() > kMaxLength) return "";
  std::string_view nearest;
  size_t limit = name.size() / 3 + 1;  // exclusive
  for (const std::string_view candidate : known) {
    const size_t distance = edit_distance(name, candidate);
    if (distance >= limit) continue;
    limit = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace hero
