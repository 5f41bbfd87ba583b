// Optimizer operators against the equations in fp64.
#include <ATen/Parallel.h>

#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/ops.h"
#include "ops/random_cases.h"

namespace hero::test {
namespace adamw_test {

const ops::AdamWOptions kOptions{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1, .eps = 1e-6};

// Tensors of one step; gradients and moments vary widely in magnitude.
struct State {
  std::vector<at::Tensor> values, gradients, exp_avg, exp_avg_sq, leaves;

  State(const AdamWCase& c, at::ScalarType type, at::DeviceType device) {
    const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
    uint64_t seed = 0;
    const auto add = [&](std::vector<at::Tensor>& to, const at::Tensor& elements) {
      to.push_back(elements.to(device, wide));
    };
    for (const int64_t n : c.sizes) {
      add(values, normal({n}, ++seed));
      const auto size = at::exp(4 * normal({n}, ++seed));
      add(gradients, normal({n}, ++seed) * size);
      add(exp_avg, normal({n}, ++seed) * 0.1);
      add(exp_avg_sq, normal({n}, ++seed).square());
      leaves.push_back(type == wide ? values.back() : at::zeros_like(values.back(), type));
    }
  }
};

using AdamWTest = DeviceTest;
HERO_ON_DEVICES(AdamWTest);

TEST_P(AdamWTest, ValuesMomentsAndLeavesMatchEquations) {
  for (const auto& c : all_cases(adamw_cases())) {
    if (c.timed && type() != at::kBFloat16) continue;
    for (const bool scaled : {false, true}) {
      SCOPED_TRACE(::testing::Message() << c.sizes.size() << " tensors, scaled " << scaled);
      const State before(c, type(), device()), after(c, type(), device());
      const double count = 3;
      const auto step = at::full({}, count, at::TensorOptions(device()).dtype(at::kFloat));
      std::optional<at::Tensor> scale;
      if (scaled) scale = at::full({}, 0.375, at::TensorOptions(device()).dtype(at::kDouble));
      ops::adamw_step(after.values, after.gradients, after.exp_avg, after.exp_avg_sq, after.leaves, step,
                      kOptions, scale, {});
      const auto tolerance = type() == at::kDouble ? kFp64 : kFp32;
      for (size_t i = 0; i < c.sizes.size(); ++i) {
        const auto g = before.gradients[i].to(at::kDouble) * (scaled ? 0.375 : 1.0);
        const auto first = kOptions.beta1 * before.exp_avg[i].to(at::kDouble) + (1 - kOptions.beta1) * g;
        const auto second =
            kOptions.beta2 * before.exp_avg_sq[i].to(at::kDouble) + (1 - kOptions.beta2) * g.square();
        const auto m = first / (1 - std::pow(kOptions.beta1, count)),
                   v = second / (1 - std::pow(kOptions.beta2, count));
        const auto value = before.values[i].to(at::kDouble) * (1 - kOptions.lr * kOptions.weight_decay) -
                           kOptions.lr * m / (v.sqrt() + kOptions.eps);
        EXPECT_TRUE(close(after.exp_avg[i], first, tolerance));
        EXPECT_TRUE(close(after.exp_avg_sq[i], second, tolerance));
        EXPECT_TRUE(close(after.values[i], value, tolerance));
        EXPECT_TRUE(same(after.leaves[i], after.values[i].to(type())));
        EXPECT_TRUE(same(after.gradients[i], before.gradients[i]));
      }
    }
  }
}

TEST_P(AdamWTest, SkipsTheStepIfTheFlagIsOne) {
  const auto& c = adamw_cases()[1];
  const auto scalar = [&](double v, at::ScalarType scalar_type) {
    return at::full({}, v, at::TensorOptions(device()).dtype(scalar_type));
  };
  const auto step = scalar(3, at::kFloat), scale = scalar(0.375, at::kDouble);
  const auto run = [&](const std::optional<at::Tensor>& skip) {
    State s(c, type(), device());
    ops::adamw_step(s.values, s.gradients, s.exp_avg, s.exp_avg_sq, s.leaves, step, kOptions, scale, skip);
    return s;
  };
  const State before(c, type(), device()), skipped = run(scalar(1, at::kFloat)),
                                           not_skipped = run(scalar(0, at::kFloat)), updated = run({});
  const auto tolerance = type() == at::kDouble ? kFp64 : kFp32;
  for (const auto member : {&State::values, &State::gradients, &State::exp_avg, &State::exp_avg_sq}) {
    for (size_t i = 0; i < c.sizes.size(); ++i) {
      EXPECT_TRUE(same((skipped.*member)[i], (before.*member)[i]));
      EXPECT_TRUE(close((not_skipped.*member)[i], (updated.*member)[i], tolerance));
    }
  }
  for (size_t i = 0; i < c.sizes.size(); ++i)
    EXPECT_TRUE(same(not_skipped.gradients[i], before.gradients[i]));
}

TEST_P(AdamWTest, SumOfSquares) {
  for (const auto& c : all_cases(adamw_cases())) {
    const State state(c, type(), device());
    double want = 0;
    for (const auto& g : state.gradients) want += g.to(at::kDouble).square().sum().item<double>();
    const auto got = ops::sum_of_squares(state.gradients);
    EXPECT_EQ(got.scalar_type(), at::kDouble);
    EXPECT_NEAR(got.item<double>(), want, want * (type() == at::kDouble ? 1e-12 : 1e-6));
  }
}

TEST(AdamW, SumOfSquaresPropagatesNonFiniteValues) {
  const auto x = at::ones({70000});
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    x[40000] = bad;
    EXPECT_FALSE(std::isfinite(ops::sum_of_squares({x}).item<double>()));
  }
}

TEST(AdamW, BitwiseReproducibleForAnyThreadCount) {
  const int threads = at::get_num_threads();
  std::vector<std::vector<at::Tensor>> results;
  for (const int n : {1, 2, 2}) {
    at::set_num_threads(n);
    const State s(adamw_cases()[2], at::kBFloat16, at::kCPU);
    const auto norm = ops::sum_of_squares(s.gradients);
    ops::adamw_step(s.values, s.gradients, s.exp_avg, s.exp_avg_sq, s.leaves, at::ones({}), kOptions, norm,
                    {});
    results.push_back({norm, s.values[3], s.exp_avg[3], s.exp_avg_sq[3], s.leaves[3]});
  }
  at::set_num_threads(threads);
  for (size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_TRUE(same(results[1][i], results[0][i]));
    EXPECT_TRUE(same(results[2][i], results[0][i]));
  }
}

}  // namespace adamw_test
}  // namespace hero::test
