#include "ops/cpu/random_pairs.h"

#include <ATen/core/PhiloxRNGEngine.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <vector>

namespace hero::test {
namespace random_pairs_test {

using cpu::kRandomPairs;

// Counters within one word, across the boundary of the first word, and the last ones.
struct Stream {
  uint64_t seed, stream, first;
};
constexpr Stream kStreams[] = {{0, 0, 0},
                               {7, 0x123456789abcdef0, (uint64_t{1} << 32) - 100},
                               {~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0} - 300}};

std::vector<double> samples(decltype(cpu::normal_pairs)& fill, const Stream& s, int64_t pairs) {
  std::vector<double> all(2 * pairs);
  for (int64_t i = 0; i < pairs; i += kRandomPairs) {
    fill(s.seed, s.stream, s.first + static_cast<uint64_t>(i), std::min(kRandomPairs, pairs - i),
         all.data() + 2 * i);
  }
  return all;
}

TEST(RandomPairs, UniformSamplesAreTheWordsOfPhilox) {
  for (const auto& s : kStreams) {
    const auto found = samples(cpu::uniform_pairs, s, 300);
    for (uint64_t i = 0; i < 300; ++i) {
      at::Philox4_32 engine(s.seed, s.stream, s.first + i);
      for (uint64_t j = 0; j < 2; ++j)
        ASSERT_EQ(found[2 * i + j], (static_cast<double>(engine()) + 0.5) * 0x1p-32) << s.first << " + " << i;
    }
  }
}

TEST(RandomPairs, NormalSamplesAreBoxMuller) {
  for (const auto& s : kStreams) {
    constexpr int64_t kPairs = 100000;
    const auto u = samples(cpu::uniform_pairs, s, kPairs), found = samples(cpu::normal_pairs, s, kPairs);
    for (int64_t i = 0; i < 2 * kPairs; i += 2) {
      const long double radius = std::sqrt(-2 * std::log(static_cast<long double>(u[i]))),
                        angle = 2 * std::numbers::pi_v<long double> * u[i + 1];
      ASSERT_NEAR(found[i], static_cast<double>(radius * std::cos(angle)), 4e-15) << u[i] << " " << u[i + 1];
      ASSERT_NEAR(found[i + 1], static_cast<double>(radius * std::sin(angle)), 4e-15)
          << u[i] << " " << u[i + 1];
    }
  }
}

// The bits do not depend on the instruction set, on how many pairs are computed together, or on the machine.
TEST(RandomPairs, NormalSamplesHaveTheSameBitsEverywhere) {
  uint64_t hash = 0;
  for (const auto& s : kStreams) {
    const auto all = samples(cpu::normal_pairs, s, 10000);
    for (const double value : all) hash = (hash ^ std::bit_cast<uint64_t>(value)) * 1099511628211u;
    double pair[2];
    for (uint64_t i = 0; i < 300; ++i) {
      cpu::normal_pairs(s.seed, s.stream, s.first + i, 1, pair);
      ASSERT_EQ(pair[0], all[2 * i]);
      ASSERT_EQ(pair[1], all[2 * i + 1]);
    }
  }
  EXPECT_EQ(hash, 2301362197535529019u);
}

}  // namespace random_pairs_test
}  // namespace hero::test
