#include <ATen/core/grad_mode.h>

#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/cpu/gemm.h"
#include "ops/ops.h"
#include "ops/random_cases.h"

namespace hero::test {
namespace linear_test {

std::vector<Operand> operands_of(const LinearCase& c) {
  return {{normal({c.tokens, c.in}, 1)}, {normal({c.out, c.in}, 2), Role::kWeight}};
}

std::vector<at::Tensor> linear(const std::vector<at::Tensor>& in) { return {ops::linear(in[0], in[1])}; }
std::vector<at::Tensor> expected(const std::vector<at::Tensor>& in) { return {at::matmul(in[0], in[1].t())}; }

using LinearTest = DeviceTest;
HERO_ON_DEVICES(LinearTest);

TEST_P(LinearTest, ValuesAndGradients) {
  for (const auto& c : all_cases(kLinearCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " I " << c.in << " O " << c.out);
    check(linear, expected, operands_of(c), {kRoundedOnce}, {kRoundedOnce, kFp32});
  }
}

// A slice of the last dimension is strided, also after merging its leading dimensions.
TEST_P(LinearTest, ValuesOfStridedInputs) {
  const auto slice = [](const at::Tensor& t) { return t.slice(-1, 16, 48); };
  const auto transposed = [](const at::Tensor& t) { return t.transpose(0, 1).slice(-1, 0, 32); };
  for (const auto& view : std::vector<std::function<at::Tensor(const at::Tensor&)>>{slice, transposed}) {
    check([&](const auto& in) { return linear({view(in[0]), in[1]}); },
          [&](const auto& in) { return expected({view(in[0]), in[1]}); },
          {{normal({3, 7, 80}, 1)}, {normal({64, 32}, 2), Role::kWeight}}, {kRoundedOnce},
          {kRoundedOnce, kFp32});
  }
  const auto columns = [](const at::Tensor& t) { return t.slice(1, 16, 48); };
  check([&](const auto& in) { return linear({in[0], columns(in[1])}); },
        [&](const auto& in) { return expected({in[0], columns(in[1])}); },
        {{normal({9, 32}, 1)}, {normal({64, 80}, 2), Role::kWeight}}, {kRoundedOnce},
        {kRoundedOnce, kRoundedOnce});
}

TEST_P(LinearTest, ValuesOfDeferredGradients) {
  for (const auto& c : all_cases(kLinearCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " I " << c.in << " O " << c.out);
    check_deferred(linear, operands_of(c), type(), device());
  }
}

TEST_P(LinearTest, FrozenOperands) {
  for (const auto& c : all_cases(kLinearCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " I " << c.in << " O " << c.out);
    check_frozen(linear, operands_of(c), type(), device());
  }
}

TEST(Linear, GradientsMatchFiniteDifferences) { check_finite_differences(linear, operands_of({3, 5, 4})); }

TEST(Linear, BitwiseReproducibleForAnyThreadCount) {
  if (!cpu::supports_gemm(16)) GTEST_SKIP() << "no fused kernels";
  for (const auto& c : all_cases(kLinearCases)) {
    if (c.in % 16 == 0 && c.out % 16 == 0) check_reproducible(linear, operands_of(c), at::kBFloat16);
  }
}

// Kernels for one row and for several add products in the same order, which depends only on the row's length.
TEST(Linear, AFewRowsAreIndependent) {
  if (!cpu::supports_gemm(16)) GTEST_SKIP() << "no fused kernels";
  const at::NoGradGuard no_grad;
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    for (const int64_t in : {16, 48, 112, 128, 160, 256, 496, 512, 528, 1040}) {
      const auto x = normal({5, in}, 1).to(type), w = normal({48, in}, 2).to(type);
      for (const int64_t rows : {2, 3, 4, 5}) {
        const auto together = ops::linear(x.slice(0, 0, rows), w);
        for (int64_t i = 0; i < rows; ++i)
          EXPECT_TRUE(same(ops::linear(x.slice(0, i, i + 1), w)[0], together[i])) << type << " " << in;
      }
    }
  }
}

TEST(Linear, EmptyInputGivesZeroWeightGradient) {
  const auto result =
      run(linear, {{normal({0, 32}, 1)}, {normal({48, 32}, 2), Role::kWeight}}, at::kBFloat16);
  EXPECT_EQ(result.outputs[0].sizes(), (std::vector<int64_t>{0, 48}));
  EXPECT_TRUE(same(result.gradients[1], at::zeros({48, 32})));
}

TEST(Linear, WeightGradientIsFp32) {
  const auto dw = run(linear, operands_of({5, 16, 16}), at::kBFloat16).gradients[1];
  EXPECT_FALSE(at::equal(dw, dw.to(at::kBFloat16).to(at::kFloat))) << "rounded to bf16";
}

TEST(Linear, RejectsInvalidArguments) {
  const auto x = at::zeros({4, 32}), w = at::zeros({8, 16});
  EXPECT_EQ(error_of([&] { ops::linear(x, w); }),
            "linear: w must be [O, I] with I = 32 as in x [4, 32], got [8, 16]");
  EXPECT_EQ(error_of([&] { ops::linear(x, at::zeros({8, 32}, at::kDouble)); }),
            "linear: x is Float, w is Double");
}

}  // namespace linear_test
}  // namespace hero::test
