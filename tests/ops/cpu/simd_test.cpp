#include "ops/cpu/simd.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace hero::test {
namespace simd_test {

HERO_SIMD void exponentials(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = cpu::exp_fast(x[i]);
}

TEST(Simd, ExpFastIsAccurate) {
  std::vector<float> x, y;
  for (double v = -87.0; v < 88.0; v += 1e-4) x.push_back(static_cast<float>(v));
  y.resize(x.size());
  exponentials(x.data(), static_cast<int64_t>(x.size()), y.data());
  double worst = 0;
  float where = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i])), error = std::abs(y[i] / exact - 1);
    if (!(error <= worst)) worst = error, where = x[i];
  }
  EXPECT_LT(worst, 2e-7) << "at " << where;
}

TEST(Simd, ExpFastAtRangeLimits) {
  const std::vector<float> x = {0.0f, -0.0f, -87.4f, -1e4f, -3e38f, 88.0f, 1e4f, 3e38f};
  std::vector<float> y(x.size());
  exponentials(x.data(), static_cast<int64_t>(x.size()), y.data());
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], 1.0f);
  for (const size_t i : {2, 3, 4}) EXPECT_LT(std::abs(y[i]), 2e-38f) << x[i];
  for (const size_t i : {5, 6, 7}) EXPECT_NEAR(y[i] / std::exp(88.0), 1.0, 1e-6) << x[i];
}

TEST(Simd, StoreRoundsLikeLibTorch) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values = {0.0f, -0.0f, inf, -inf, 3.4e38f, 1e-40f, 1.00390625f, 1.01171875f};
  for (uint32_t bits = 0x3f800000u; bits < 0x3f840000u; bits += 37)
    values.push_back(std::bit_cast<float>(bits));
  for (const float v : values) {
    c10::BFloat16 got;
    cpu::store(got, v);
    EXPECT_EQ(got.x, c10::BFloat16(v).x) << v;
    EXPECT_EQ(std::bit_cast<uint32_t>(cpu::load(got)), static_cast<uint32_t>(got.x) << 16);
  }
  // NaN of any payload; compared as bits, because this file is compiled with -ffinite-math-only.
  for (const uint32_t bits : {0x7fc00000u, 0x7f800001u, 0xffc00000u, 0x7fffffffu, 0xffffffffu}) {
    c10::BFloat16 nan;
    cpu::store(nan, std::bit_cast<float>(bits));
    EXPECT_GT(nan.x & 0x7fff, 0x7f80) << std::hex << bits;
  }
}

}  // namespace simd_test
}  // namespace hero::test
