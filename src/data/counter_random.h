// Counter-based random numbers: every value is a function of a key and a counter (the finalizer of
// SplitMix64, Steele et al. 2014, applied to both), so results do not depend on threads or call order.
// model/random.h has another generator, which fills tensors: sample order must not depend on LibTorch, and
// existing runs fix the values of both.
#pragma once
#include <cstdint>
#include <numeric>
#include <vector>

namespace hero {

inline uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// 64 uniform bits at position `counter` of the stream `key`.
inline uint64_t counter_bits(uint64_t key, uint64_t counter) { return mix64(mix64(key) ^ mix64(~counter)); }

/// Permutation of 0..n-1 determined by `key` (Fisher-Yates).
inline std::vector<int64_t> counter_permutation(int64_t n, uint64_t key) {
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = n - 1; i > 0; --i) {
    const unsigned __int128 wide = static_cast<unsigned __int128>(counter_bits(key, i)) * (i + 1);
    std::swap(order[i], order[static_cast<int64_t>(wide >> 64)]);
  }
  return order;
}

}  // namespace hero
