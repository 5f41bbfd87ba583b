#include "data/best_fit.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "data/counter_random.h"

namespace hero {

BestFitPacking::BestFitPacking(int64_t documents, std::function<int64_t(int64_t)> length, int64_t sequence)
    : length_(std::move(length)), sequence_(sequence), full_ends_(documents) {
  const int64_t entries = sequence + 1;
  std::vector<int64_t> count(entries);  // rests of each length
  int64_t full = 0;
  for (int64_t d = 0; d < documents; ++d) {
    const int64_t tokens = length_(d), left = rest(d);
    full_ends_[d] = full += std::max<int64_t>(tokens - 1, 0) / sequence;
    split_documents_ += tokens > entries;
    if (left > 0) ++count[left];
  }
  std::map<int64_t, std::vector<int64_t>> by_room;  // bins with room, by the number of free entries
  std::vector<int64_t> bin_of;                      // by slot
  int64_t bins = 0;
  for (int64_t left = entries - 1; left > 0; --left) {
    for (int64_t i = 0; i < count[left]; ++i) {
      const auto fullest = by_room.lower_bound(left);
      int64_t bin = bins, room = entries;
      if (fullest == by_room.end()) {
        ++bins;
      } else {
        room = fullest->first;
        bin = fullest->second.back();
        fullest->second.pop_back();
        if (fullest->second.empty()) by_room.erase(fullest);
      }
      bin_of.push_back(bin);
      if (room > left) by_room[room - left].push_back(bin);
    }
  }
  for (const auto& [room, list] : by_room) padding_ += room * static_cast<int64_t>(list.size());
  slot_ends_.resize(bins);
  for (const int64_t bin : bin_of) ++slot_ends_[bin];
  std::partial_sum(slot_ends_.begin(), slot_ends_.end(), slot_ends_.begin());
  slots_.resize(bin_of.size());
  auto next = slot_ends_;
  for (auto slot = static_cast<int64_t>(bin_of.size()) - 1; slot >= 0; --slot)
    slots_[--next[bin_of[slot]]] = slot;
}

int64_t BestFitPacking::rest(int64_t document) const {
  const int64_t tokens = length_(document), targets = tokens > 0 ? (tokens - 1) % sequence_ : 0;
  return targets > 0 ? targets + 1 : 0;
}

BestFitPacking::Epoch BestFitPacking::epoch(uint64_t key) const {
  Epoch epoch{.by_length = std::vector<int64_t>(slots_.size()),
              .bins = counter_permutation(bins(), ~key),
              .key = key};
  const auto shuffled = counter_permutation(static_cast<int64_t>(full_ends_.size()), key);
  std::vector<int64_t> begin(sequence_ + 2);  // by length: first index in by_length; longest first
  for (const int64_t d : shuffled) ++begin[rest(d)];
  begin[0] = 0;
  int64_t at = 0;
  for (int64_t left = sequence_ + 1; left > 0; --left) at += std::exchange(begin[left], at);
  for (const int64_t d : shuffled) {
    if (const int64_t left = rest(d); left > 0) epoch.by_length[begin[left]++] = d;
  }
  return epoch;
}

std::vector<BestFitPacking::Piece> BestFitPacking::pieces(const Epoch& epoch, int64_t i) const {
  int64_t bin = epoch.bins[i];
  if (bin < full_bins()) {
    const auto end = std::upper_bound(full_ends_.begin(), full_ends_.end(), bin);
    const int64_t document = end - full_ends_.begin(), before = document > 0 ? *(end - 1) : 0;
    return {{document, (bin - before) * sequence_, sequence_ + 1}};
  }
  bin -= full_bins();
  std::vector<Piece> pieces;
  for (int64_t slot = bin > 0 ? slot_ends_[bin - 1] : 0; slot < slot_ends_[bin]; ++slot) {
    const int64_t document = epoch.by_length[slots_[slot]], count = rest(document);
    pieces.push_back({document, length_(document) - count, count});
  }
  // Otherwise the position of a document in its sequence would follow from its length.
  std::ranges::sort(pieces, {}, [&](const Piece& piece) {
    return std::pair(counter_bits(epoch.key, static_cast<uint64_t>(piece.document)), piece.document);
  });
  return pieces;
}

}  // namespace hero
