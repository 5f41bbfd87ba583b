#include <cmath>

#include "ops/assignments.h"
#include "ops/cpu/gemm.h"
#include "ops/ops.h"
#include "ops/random_cases.h"

namespace hero::test {
namespace experts_test {

std::vector<Operand> operands_of(const ExpertsCase& c) {
  const auto ids = ids_of(c);
  const auto rows = ids.ge(0).sum().item<int64_t>();
  const auto scale = [](int64_t n) { return 1 / std::sqrt(static_cast<double>(n)); };
  return {{normal({rows, c.width}, 1)},
          {normal({c.experts, 2 * c.inner, c.width}, 2, scale(c.width)), Role::kWeight},
          {normal({c.experts, c.width, c.inner}, 3, scale(c.inner)), Role::kWeight},
          {ids, Role::kFixed}};
}

Function experts(const ExpertsCase& c) {
  return [c](const std::vector<at::Tensor>& in) {
    return std::vector{ops::experts(in[0], in[1], in[2], ops::plan(in[3], c.experts))};
  };
}

// Each expert on its rows, concatenated.
std::vector<at::Tensor> expected(const std::vector<at::Tensor>& in) {
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (int64_t e = 0; e < in[1].size(0); ++e) {
    const auto rows = in[3].eq(e).sum().item<int64_t>();
    const auto halves = at::matmul(in[0].slice(0, first, first + rows), in[1][e].t()).chunk(2, 1);
    parts.push_back(at::matmul(halves[0] * at::sigmoid(halves[0]) * halves[1], in[2][e].t()));
    first += rows;
  }
  return {at::cat(parts)};
}

// A gradient accumulates up to four roundings: gate and up, their product, its gradient, and that of gate and
// up. Large products dominate some sums.
constexpr Tolerance kChained{1.01 * kBf16Rounding, 20 * kBf16Rounding, 1.25 * kBf16Rounding};

using ExpertsTest = DeviceTest;
HERO_ON_DEVICES(ExpertsTest);

TEST_P(ExpertsTest, ValuesAndGradients) {
  for (const auto& c : all_cases(kExpertsCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    SCOPED_TRACE(name(c));
    check(experts(c), expected, operands_of(c), {kRoundedFactors * c.slack},
          {kChained * c.slack, kChained * c.slack, kChained * c.slack});
  }
}

TEST_P(ExpertsTest, ValuesOfDeferredGradients) {
  for (const auto& c : all_cases(kExpertsCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    SCOPED_TRACE(name(c));
    check_deferred(experts(c), operands_of(c), type(), device());
  }
}

TEST_P(ExpertsTest, ValuesOfAccumulatedGradients) {
  for (const auto& c : all_cases(kExpertsCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    SCOPED_TRACE(name(c));
    check_accumulated(experts(c), operands_of(c), type(), device());
  }
}

TEST_P(ExpertsTest, FrozenOperands) {
  for (const auto& c : all_cases(kExpertsCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(name(c));
    check_frozen(experts(c), operands_of(c), type(), device());
  }
}

TEST(Experts, ExpertsWithoutRowsGetZeroGradients) {
  for (const auto& c : all_cases(kExpertsCases)) {
    SCOPED_TRACE(name(c));
    const auto idle = ops::plan(ids_of(c), c.experts).counts.eq(0);
    if (c.timed || !idle.any().item<bool>()) continue;
    for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
      const auto gradients = run(experts(c), operands_of(c), type).gradients;
      for (const size_t weight : {1, 2}) {
        const auto of_idle = gradients[weight].index({idle});
        EXPECT_TRUE(same(of_idle, at::zeros_like(of_idle)));
        EXPECT_TRUE(gradients[weight].index({~idle}).flatten(1).abs().amax(1).gt(0).all().item<bool>());
      }
    }
  }
}

TEST(Experts, GradientsMatchFiniteDifferences) {
  const ExpertsCase c{4, 2, 3, 4, 2};
  check_finite_differences(experts(c), operands_of(c));
}

TEST(Experts, BitwiseReproducibleForAnyThreadCount) {
  if (!cpu::supports_gemm(16)) GTEST_SKIP() << "no fused kernels";
  for (const auto& c : all_cases(kExpertsCases)) {
    SCOPED_TRACE(name(c));
    if (c.width % 16 == 0 && c.inner % 16 == 0) check_reproducible(experts(c), operands_of(c), at::kBFloat16);
  }
}

TEST(Experts, RowsAreIndependent) {
  const ExpertsCase c{130, 1, 8, 80, 48, Load::kOne};
  const auto operands = operands_of(c);
  const auto all = run(experts(c), operands, at::kBFloat16);
  auto changed = operands;
  changed[0].value = operands[0].value.clone();
  changed[0].value.slice(0, 64).fill_(3.0);
  const auto other = run(experts(c), changed, at::kBFloat16);
  EXPECT_TRUE(same(other.outputs[0].slice(0, 0, 64), all.outputs[0].slice(0, 0, 64)));
  EXPECT_TRUE(same(other.gradients[0].slice(0, 0, 64), all.gradients[0].slice(0, 0, 64)));
}

TEST(Experts, RejectsInvalidArguments) {
  const auto plan = ops::plan(at::zeros({3, 1}, at::kLong), 4);
  const auto x = at::zeros({3, 8}), down = at::zeros({4, 8, 6}), gate_up = at::zeros({4, 12, 8});
  EXPECT_EQ(error_of([&] { ops::experts(x, at::zeros({4, 12, 7}), down, plan); }),
            "experts: gate_up must be [E, 2F, D] = [4, 2F, 8], got [4, 12, 7]");
  EXPECT_EQ(error_of([&] { ops::experts(x, gate_up, at::zeros({4, 6, 8}), plan); }),
            "experts: down must be [E, D, F] = [4, 8, 6], got [4, 6, 8]");
}

}  // namespace experts_test
}  // namespace hero::test
