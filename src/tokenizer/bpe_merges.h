// Byte pair encoding of one word: starts with one symbol per byte and merges the pair of the lowest rank,
// leftmost first.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace hero {

class BpeMerges {
 public:
  struct Merge {
    int32_t left, right, merged;  // ids; the index in the list is the rank
  };
  /// `bytes`: id of each byte's symbol; -1: the byte becomes `unknown` (fused with adjacent ones if
  /// `fuse_unknown`), or is dropped if that is -1. The last of duplicate merges wins.
  BpeMerges(const std::array<int32_t, 256>& bytes, const std::vector<Merge>& merges, int32_t unknown,
            bool fuse_unknown);

  /// Appends the ids of `word`. O(n log n) in its length.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Entry {
    uint64_t pair;
    uint32_t rank;
    int32_t merged;
  };
  const Entry* find(int32_t left, int32_t right) const;
  void symbols(std::string_view word, std::vector<int32_t>& ids) const;
  std::size_t merge_short(int32_t* ids, std::size_t count) const;
  std::size_t merge_long(int32_t* ids, std::size_t count) const;

  std::array<int32_t, 256> bytes_;
  int32_t unknown_;
  bool fuse_unknown_;
  std::vector<Entry> table_;  // open addressing; size is a power of two
  int shift_ = 0;
};

}  // namespace hero
