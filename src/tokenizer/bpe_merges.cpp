#include "tokenizer/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>

namespace hero {

namespace {

constexpr uint64_t kNoPair = std::numeric_limits<uint64_t>::max();
constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
constexpr std::size_t kShort = 64;  // up to this length, a linear scan is faster than a heap

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

std::size_t slot_of(uint64_t pair, int shift) { return (pair * 0x9E3779B97F4A7C15ull) >> shift; }

}  // namespace

BpeMerges::BpeMerges(const std::array<int32_t, 256>& bytes, const std::vector<Merge>& merges, int32_t unknown,
                     bool fuse_unknown)
    : bytes_(bytes), unknown_(unknown), fuse_unknown_(fuse_unknown) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(2 * merges.size(), 16));
  table_.assign(slots, {kNoPair, kNoRank, 0});
  shift_ = 64 - std::countr_zero(slots);
  for (uint32_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    std::size_t slot = slot_of(pair, shift_);
    while (table_[slot].pair != kNoPair && table_[slot].pair != pair) slot = (slot + 1) & (slots - 1);
    table_[slot] = {pair, rank, merges[rank].merged};
  }
}

const BpeMerges::Entry* BpeMerges::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (std::size_t slot = slot_of(pair, shift_);; slot = (slot + 1) & (table_.size() - 1)) {
    if (table_[slot].pair == pair) return &table_[slot];
    if (table_[slot].pair == kNoPair) return nullptr;
  }
}

void BpeMerges::encode(std::string_view word, std::vector<int32_t>& ids) const {
  const std::size_t before = ids.size();
  symbols(word, ids);
  const std::size_t count = ids.size() - before;
  int32_t* const first = ids.data() + before;
  ids.resize(before + (count <= kShort ? merge_short(first, count) : merge_long(first, count)));
}

void BpeMerges::symbols(std::string_view word, std::vector<int32_t>& ids) const {
  bool after_unknown = false;
  for (const char c : word) {
    const int32_t id = bytes_[static_cast<unsigned char>(c)];
    if (id >= 0) ids.push_back(id);
    if (id < 0 && unknown_ >= 0 && !(after_unknown && fuse_unknown_)) ids.push_back(unknown_);
    after_unknown = id < 0;
  }
}

// Merges in place and returns the number of remaining symbols.
std::size_t BpeMerges::merge_short(int32_t* ids, std::size_t count) const {
  std::array<Entry, kShort> pairs;  // pairs[i]: the merge of ids[i] and ids[i + 1]
  const auto look_up = [&](std::size_t i) {
    const Entry* const found = find(ids[i], ids[i + 1]);
    pairs[i] = found ? *found : Entry{kNoPair, kNoRank, 0};
  };
  for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoRank) break;
    ids[best] = pairs[best].merged;
    std::copy(ids + best + 2, ids + count, ids + best + 1);
    std::copy(pairs.begin() + best + 1, pairs.begin() + count - 1, pairs.begin() + best);
    --count;
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  return count;
}

// The same with a heap. A heap entry is stale if its position no longer holds its pair.
std::size_t BpeMerges::merge_long(int32_t* ids, std::size_t count) const {
  struct Candidate {
    uint32_t rank;
    std::size_t at;
    uint64_t pair;
    int32_t merged;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  constexpr int32_t kGone = -1;
  std::vector<std::size_t> next(count), previous(count);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto look_up = [&](std::size_t at) {
    if (next[at] == count) return;
    if (const Entry* const found = find(ids[at], ids[next[at]]))
      candidates.push({found->rank, at, found->pair, found->merged});
  };
  for (std::size_t i = 0; i < count; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;  // unused for the first symbol
  }
  for (std::size_t i = 0; i < count; ++i) look_up(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    const std::size_t at = best.at;
    if (ids[at] == kGone || next[at] == count || pair_of(ids[at], ids[next[at]]) != best.pair) continue;
    ids[at] = best.merged;
    ids[next[at]] = kGone;
    next[at] = next[next[at]];
    if (next[at] != count) previous[next[at]] = at;
    if (at > 0) look_up(previous[at]);
    look_up(at);
  }
  return static_cast<std::size_t>(std::remove(ids, ids + count, kGone) - ids);
}

}  // namespace hero
