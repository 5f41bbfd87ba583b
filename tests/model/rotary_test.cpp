// Rotary frequencies.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

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

}  // namespace rotary_test
}  // namespace hero::test
