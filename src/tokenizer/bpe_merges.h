// Byte pair encoding of one word: its symbols, at first one a byte, are joined pair by pair, the pair of the
// lowest rank first, of equal ones the leftmost.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace hero {

class BpeMerges {
 public:
  struct Merge {
    int32_t left, right, joined;  // ids; the place in the list is the rank
  };
  /// `bytes`: the id of each byte's symbol, -1 for a byte that has none: it becomes `unknown`, once for
  /// neighbours if `fuse_unknown`, or nothing where that is -1. Of two merges of one pair the later counts.
  BpeMerges(const std::array<int32_t, 256>& bytes, const std::vector<Merge>& merges, int32_t unknown,
            bool fuse_unknown);

  /// Appends the ids of `word`. Time grows as n log n with its length.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Entry {
    uint64_t pair;
    uint32_t rank;
    int32_t joined;
  };
  const Entry* find(int32_t left, int32_t right) const;
  void symbols(std::string_view word, std::vector<int32_t>& ids) const;
  std::size_t join_short(int32_t* ids, std::size_t count) const;
  std::size_t join_long(int32_t* ids, std::size_t count) const;

  std::array<int32_t, 256> bytes_;
  int32_t unknown_;
  bool fuse_unknown_;
  std::vector<Entry> table_;  // open addressing; a power of two
  int shift_ = 0;
};

}  // namespace hero
