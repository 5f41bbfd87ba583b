// Cache of encoded words. One per thread; bounded, cleared when full.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace hero {

class WordCache {
 public:
  /// Appends the cached ids of `word`, or calls `encode(word, ids)` and caches them. Long words are not
  /// cached.
  template <typename Encode>
  void append(std::string_view word, std::vector<int32_t>& ids, Encode encode) {
    if (word.size() > kLongestCached) return encode(word, ids);
    if (const auto known = words_.find(word); known != words_.end()) {
      const auto from = ids_.begin() + known->second.begin;
      ids.insert(ids.end(), from, from + known->second.count);
      return;
    }
    if (words_.size() >= kCachedWords) {
      words_.clear();
      ids_.clear();
    }
    const std::size_t before = ids.size();
    encode(word, ids);
    words_.emplace(word,
                   Slice{static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(ids.size() - before)});
    ids_.insert(ids_.end(), ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end());
  }

 private:
  static constexpr std::size_t kLongestCached = 48;
  static constexpr std::size_t kCachedWords = 1 << 20;
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  struct Slice {
    uint32_t begin, count;
  };
  std::unordered_map<std::string, Slice, Hash, std::equal_to<>> words_;
  std::vector<int32_t> ids_;
};

}  // namespace hero
