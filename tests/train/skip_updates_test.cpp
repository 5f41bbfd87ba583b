#include "train/skip_updates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hero {
namespace skip_updates_test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(SkipUpdates, NothingByDefault) {
  SkipState state;
  for (const double value : {1.0, 1e9, kNan, kInfinity}) {
    EXPECT_FALSE(skips_update({}, state, value, 1));
    EXPECT_FALSE(skips_update({}, state, 1, value));
  }
  EXPECT_EQ(state.skipped, 0);
  EXPECT_TRUE(state.losses.empty());
}

TEST(SkipUpdates, ValuesThatAreNotFiniteUpToALimitInARow) {
  TrainConfig config;
  config.skip_nonfinite = 2;
  SkipState state;
  EXPECT_TRUE(skips_update(config, state, kNan, 1));
  EXPECT_TRUE(skips_update(config, state, 1, kInfinity));
  EXPECT_FALSE(skips_update(config, state, kNan, kNan)) << "the third in a row";
  EXPECT_EQ(state.nonfinite_in_a_row, 2);
  EXPECT_FALSE(skips_update(config, state, 1, 1));
  EXPECT_EQ(state.nonfinite_in_a_row, 0);
  EXPECT_TRUE(skips_update(config, state, -kInfinity, 1));
  EXPECT_EQ(state.skipped, 3);
}

// Losses 1 and 3 in turns: mean 2, standard deviation 1 (times sqrt(n / (n - 1))).
double level(int64_t i) { return i % 2 ? 3 : 1; }

TEST(SkipUpdates, SpikesOfLossAndGradientNorm) {
  TrainConfig config;
  config.spike_skip = 6;
  SkipState state;
  EXPECT_FALSE(skips_update(config, state, level(0), level(0)));
  EXPECT_FALSE(skips_update(config, state, 1e9, 1e9)) << "too few values";
  state = {};
  for (int64_t i = 0; i < 64; ++i) EXPECT_FALSE(skips_update(config, state, level(i), level(i)));
  const SkipState before = state;
  for (const auto& [loss, norm, skips] :
       {std::tuple{8.0, 8.0, false}, {8.1, 2.0, true}, {2.0, 8.1, true}, {-100.0, -100.0, false}}) {
    state = before;
    EXPECT_EQ(skips_update(config, state, loss, norm), skips) << loss << " " << norm;
    EXPECT_EQ(state.skipped, skips);
    EXPECT_EQ(state.losses.size(), 65u);
    EXPECT_EQ(state.losses.back(), loss);
  }
}

TEST(SkipUpdates, LastingChangeEndsTheSkipping) {
  TrainConfig config;
  config.spike_skip = 6;
  SkipState state;
  for (int64_t i = 0; i < 300; ++i) skips_update(config, state, level(i), 1 + 1e-3 * level(i));
  EXPECT_EQ(state.losses.size(), 128u);
  EXPECT_EQ(state.skipped, 0);
  for (int64_t i = 0; i < 128; ++i) skips_update(config, state, 20 + level(i), 1 + 1e-3 * level(i));
  EXPECT_GT(state.skipped, 0);
  EXPECT_LT(state.skipped, 20);
}

}  // namespace skip_updates_test
}  // namespace hero
