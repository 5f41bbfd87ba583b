// Rotary frequencies and tables.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "model/layers.h"

namespace hero::test {
namespace rotary_test {

TEST(Rotary, YarnWithFactorOneKeepsAllBits) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto uniform = [&](double low, double high) {
      return std::uniform_real_distribution(low, high)(random);
    };
    ModelConfig model;
    model.head_dim = 2 * (1 + static_cast<int64_t>(random() % 32));
    model.rope_theta = uniform(10.0, 1e6);
    const auto type = seed % 2 == 0 ? at::kFloat : at::kDouble;
    const auto plain = rotary_frequencies(model, type);
    model.rope_scaling = {.type = RopeType::kYarn, .factor = 1.0};
    model.rope_scaling.original_max_position_embeddings = 1 + static_cast<int64_t>(random() % 64);
    model.rope_scaling.beta_slow = uniform(0.1, 2.0);
    model.rope_scaling.beta_fast = model.rope_scaling.beta_slow + uniform(0.0, 32.0);
    model.rope_scaling.truncate = random() % 2 == 0;
    EXPECT_TRUE(at::equal(rotary_frequencies(model, type), plain)) << "seed " << seed;
  }
}

// Calls with positions in any order, beyond and within those of earlier calls. The vectorized functions of
// PyTorch may round a position differently in tables of different lengths.
TEST(Rotary, CachedRowsAreThoseOfTheTable) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    ModelConfig model;
    model.head_dim = 2 * (1 + static_cast<int64_t>(random() % 32));
    if (seed % 3 == 0) model.rope_scaling = {.type = RopeType::kYarn, .factor = 4.0};
    const auto type = seed % 2 == 0 ? at::kFloat : at::kDouble;
    const double tolerance = 4 * (type == at::kFloat ? std::numeric_limits<float>::epsilon()
                                                     : std::numeric_limits<double>::epsilon());
    const auto frequencies = rotary_frequencies(model, type);
    RotaryCache cache;
    for (int call = 0; call < 6; ++call) {
      std::vector<int64_t> positions(1 + random() % 20);
      const auto first = static_cast<int64_t>(random() % 500);
      std::iota(positions.begin(), positions.end(), first);
      if (random() % 2 == 0) std::ranges::shuffle(positions, random);
      const auto rows = cache.rows(positions, frequencies, model);
      const auto table = rotary_table(at::tensor(positions), frequencies, model);
      ASSERT_EQ(rows.cos.sizes(), table.cos.sizes());
      EXPECT_LE((rows.cos - table.cos).abs().max().item<double>(), tolerance) << "seed " << seed;
      EXPECT_LE((rows.sin - table.sin).abs().max().item<double>(), tolerance) << "seed " << seed;
    }
  }
}

}  // namespace rotary_test
}  // namespace hero::test
