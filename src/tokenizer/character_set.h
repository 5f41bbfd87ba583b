#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hero {

/// A set of characters defined by an ICU pattern of Unicode properties ("[:White_Space:]").
class CharacterSet {
 public:
  explicit CharacterSet(const std::string& pattern);
  CharacterSet(CharacterSet&&) noexcept;
  ~CharacterSet();

  /// Length of the longest prefix of `text` (valid UTF-8) within the set, or outside it.
  std::size_t prefix(std::string_view text, bool within = true) const;
  /// Length of the longest suffix of `text` within the set.
  std::size_t suffix(std::string_view text) const;
  /// Appends [begin, end) of every character within the set.
  void find(std::string_view text, std::vector<std::pair<std::size_t, std::size_t>>& matches) const;

 private:
  struct Set;
  std::unique_ptr<const Set> set_;
};

}  // namespace hero
