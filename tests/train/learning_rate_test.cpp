// Learning-rate schedules against their formulas.
#include "optim/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace hero {
namespace learning_rate_test {

OptimConfig schedule(LrSchedule kind, int64_t warmup, int64_t decay = 0,
                     DecayShape shape = DecayShape::kLinear) {
  OptimConfig config;
  config.lr = 8.0;
  config.min_lr = 2.0;
  config.warmup_steps = warmup;
  config.schedule = kind;
  config.decay_steps = decay;
  config.decay_shape = shape;
  return config;
}

std::vector<double> rates(const OptimConfig& config, int64_t steps, int64_t last = 0) {
  std::vector<double> all;
  for (int64_t step = 1; step <= std::max(steps, last); ++step)
    all.push_back(learning_rate(config, step, steps));
  return all;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-14) << "step " << i + 1;
}

TEST(LearningRate, CosineHasTheValuesOfEarlierVersions) {
  for (const int64_t warmup : {0, 1, 50, 1000}) {
    OptimConfig config;
    config.warmup_steps = warmup;
    for (int64_t step = 1; step <= 1000; ++step) {
      double expected = config.lr * static_cast<double>(step) / static_cast<double>(warmup);
      if (step > warmup) {
        const double done = static_cast<double>(step - warmup) / static_cast<double>(1000 - warmup);
        expected =
            config.min_lr + 0.5 * (config.lr - config.min_lr) * (1.0 + std::cos(std::numbers::pi * done));
      }
      ASSERT_EQ(learning_rate(config, step, 1000), expected) << step;
    }
  }
}

TEST(LearningRate, WarmupThenLinearDecay) {
  expect_near(rates(schedule(LrSchedule::kLinear, 2), 6), {4, 8, 6.5, 5, 3.5, 2});
  expect_near(rates(schedule(LrSchedule::kLinear, 0), 3), {6, 4, 2});
}

TEST(LearningRate, DecayStepsFixTheEndOfCosineAndLinear) {
  const double half = std::sqrt(0.5);
  expect_near(rates(schedule(LrSchedule::kLinear, 1, 3), 6), {8, 6, 4, 2, 2, 2});
  expect_near(rates(schedule(LrSchedule::kCosine, 1, 4), 7), {8, 5 + 3 * half, 5, 5 - 3 * half, 2, 2, 2});
  // The number of steps has no influence, also if the run ends before the decay.
  for (const auto kind : {LrSchedule::kLinear, LrSchedule::kCosine}) {
    const auto config = schedule(kind, 1, 4);
    EXPECT_EQ(rates(config, 3, 9), rates(config, 9));
  }
}

TEST(LearningRate, WsdShapes) {
  const double half = std::sqrt(0.5);
  expect_near(rates(schedule(LrSchedule::kWsd, 2, 4), 9), {4, 8, 8, 8, 8, 6.5, 5, 3.5, 2});
  expect_near(rates(schedule(LrSchedule::kWsd, 2, 4, DecayShape::kCosine), 9),
              {4, 8, 8, 8, 8, 5 + 3 * half, 5, 5 - 3 * half, 2});
  expect_near(rates(schedule(LrSchedule::kWsd, 2, 4, DecayShape::k1Sqrt), 9),
              {4, 8, 8, 8, 8, 5, 8 - 6 * half, 8 - 6 * std::sqrt(0.75), 2});
}

TEST(LearningRate, WsdDecaysInTheLastTenthRoundedUp) {
  const auto config = schedule(LrSchedule::kWsd, 0);
  EXPECT_EQ(rates(config, 20), [] {
    std::vector<double> all(18, 8.0);
    all.insert(all.end(), {5.0, 2.0});
    return all;
  }());
  EXPECT_EQ(learning_rate(config, 18, 21), 8.0);
  EXPECT_NEAR(learning_rate(config, 19, 21), 6.0, 1e-14);
  // Not before the end of the warmup.
  expect_near(rates(schedule(LrSchedule::kWsd, 3), 4), {8.0 / 3, 16.0 / 3, 8, 2});
  expect_near(rates(schedule(LrSchedule::kWsd, 19), 20, 20), [] {
    std::vector<double> all;
    for (int step = 1; step <= 19; ++step) all.push_back(8.0 * step / 19);
    all.push_back(2.0);
    return all;
  }());
  expect_near(rates(schedule(LrSchedule::kWsd, 4), 4), {2, 4, 6, 8});
}

TEST(LearningRate, EdgeCases) {
  const std::vector<DecayShape> shapes = {DecayShape::kLinear, DecayShape::kCosine, DecayShape::k1Sqrt};
  for (const DecayShape shape : shapes) {
    const auto all = rates(schedule(LrSchedule::kWsd, 0, 5, shape), 5);  // the decay is the whole run
    EXPECT_LT(all.front(), 8.0);
    EXPECT_EQ(all.back(), 2.0);
    EXPECT_EQ(rates(schedule(LrSchedule::kWsd, 0, 0, shape), 1), std::vector<double>{2.0});
    EXPECT_EQ(rates(schedule(LrSchedule::kWsd, 1, 0, shape), 1), std::vector<double>{8.0});
  }
  EXPECT_EQ(rates(schedule(LrSchedule::kLinear, 0), 1), std::vector<double>{2.0});
  EXPECT_EQ(rates(schedule(LrSchedule::kCosine, 0), 1), std::vector<double>{2.0});
  EXPECT_EQ(rates(schedule(LrSchedule::kConstant, 2), 4), (std::vector<double>{4, 8, 8, 8}));
  EXPECT_EQ(rates(schedule(LrSchedule::kConstant, 0), 1), std::vector<double>{8.0});
}

TEST(LearningRate, FallsInSmallStepsAfterTheWarmup) {
  for (const auto kind : {LrSchedule::kCosine, LrSchedule::kWsd, LrSchedule::kLinear}) {
    for (const auto shape : {DecayShape::kLinear, DecayShape::kCosine}) {
      const auto all = rates(schedule(kind, 100, 500, shape), 1000);
      for (size_t i = 100; i < all.size(); ++i) {
        EXPECT_LE(all[i], all[i - 1]);
        EXPECT_LT(all[i - 1] - all[i], 0.02);
      }
      EXPECT_EQ(all.back(), 2.0);
    }
  }
}

}  // namespace learning_rate_test
}  // namespace hero
