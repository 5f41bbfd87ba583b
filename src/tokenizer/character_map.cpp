#include "tokenizer/character_map.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "io/utf8.h"

namespace hero {

namespace {

// SentencePiece's array of matches has this size; rules beyond it would be read from outside of the array.
constexpr int kMostPrefixes = 32;
constexpr int kLongestRule = 256;                  // bytes
constexpr std::size_t kLongestReplacement = 1024;  // bytes
constexpr std::size_t kBlock = 256;                // units of a trie are allocated in blocks

// A unit of a darts-clone trie.
struct Unit {
  uint32_t bits;
  bool is_value() const { return bits >> 31; }
  bool has_value() const { return bits >> 8 & 1; }  // of a rule that ends here
  uint32_t value() const { return bits & 0x7FFFFFFF; }
  uint32_t label() const { return bits & 0x800000FF; }
  uint32_t offset() const { return bits >> 10 << ((bits & 1u << 9) >> 6); }
};

// The children of unit i have the indices i ^ offset ^ byte. They are inside of the array if i ^ offset is,
// because blocks are complete.
bool offsets_inside(const std::vector<Unit>& units) {
  for (uint32_t i = 0; i < units.size(); ++i) {
    const bool followed = i == 0 || !units[i].is_value();
    if (followed && (i ^ units[i].offset()) >= units.size()) return false;
  }
  return true;
}

const char* find_value_defect(const std::vector<Unit>& units, std::string_view replacements) {
  for (uint32_t i = 1; i < units.size(); ++i) {
    if (units[i].is_value() || !units[i].has_value()) continue;
    const std::size_t value = units[i ^ units[i].offset()].value();
    if (value >= replacements.size()) return "a rule without a replacement";
    const std::string_view text = replacements.substr(value, replacements.find('\0', value) - value);
    if (text.size() > kLongestReplacement) return "a replacement of more than 1024 bytes";
    if (find_invalid_utf8(text) != text.npos) return "a replacement of invalid UTF-8";
  }
  return nullptr;
}

// Follows all rules at once, byte by byte, with the number of rules that are prefixes of each. A trie whose
// units refer to each other in a circle does not end.
bool prefixes_within_limits(const std::vector<Unit>& units) {
  std::map<uint32_t, int> level = {{units[0].offset(), 0}}, next;
  for (int depth = 0; depth <= kLongestRule; ++depth) {
    if (level.empty()) return true;
    for (const auto& [base, prefixes] : level) {
      for (uint32_t byte = 0; byte < kBlock; ++byte) {
        const uint32_t i = base ^ byte;
        if (units[i].label() != byte) continue;
        const int found = prefixes + units[i].has_value();
        if (found > kMostPrefixes) return false;
        int& most = next[i ^ units[i].offset()];
        most = std::max(most, found);
      }
    }
    level.swap(next);
    next.clear();
  }
  return false;
}

}  // namespace

const char* find_character_map_defect(std::string_view bytes) {
  uint32_t size = 0;
  if (bytes.size() <= sizeof size) return "no trie";
  std::memcpy(&size, bytes.data(), sizeof size);
  bytes.remove_prefix(sizeof size);
  if (size >= bytes.size()) return "a trie larger than the map";
  if (size == 0 || size % (kBlock * sizeof(Unit)) != 0) return "a trie of incomplete blocks";
  const std::string_view replacements = bytes.substr(size);
  if (replacements.back() != '\0') return "a replacement without an end";
  std::vector<Unit> units(size / sizeof(Unit));
  std::memcpy(units.data(), bytes.data(), size);
  if (!offsets_inside(units)) return "a trie with an offset outside of it";
  if (const char* const defect = find_value_defect(units, replacements)) return defect;
  return prefixes_within_limits(units) ? nullptr : "a trie with too many or too long rules";
}

}  // namespace hero
