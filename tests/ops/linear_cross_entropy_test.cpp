#include <ATen/core/grad_mode.h>

#include <cmath>

#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/cpu/gemm.h"
#include "ops/ops.h"
#include "ops/random_cases.h"

namespace hero::test {
namespace linear_cross_entropy_test {

std::vector<Operand> operands_of(const CrossEntropyCase& c) {
  auto targets = integers(0, c.vocabulary, {c.tokens}, 3);
  if (c.ignored) targets.slice(0, 0, c.tokens, 3).fill_(-1);
  return {{normal({c.tokens, c.width}, 1)},
          {normal({c.vocabulary, c.width}, 2, 2 / std::sqrt(static_cast<double>(c.width))), Role::kWeight},
          {targets, Role::kFixed}};
}

std::vector<at::Tensor> loss(const std::vector<at::Tensor>& in) {
  return {ops::linear_cross_entropy(in[0], in[1], in[2])};
}

std::vector<at::Tensor> expected(const std::vector<at::Tensor>& in) {
  const auto kept = in[2].ge(0);
  const auto logits = at::mm(in[0], in[1].t());
  const auto at_target = (logits * at::one_hot(in[2].clamp_min(0), in[1].size(0)).to(logits.dtype())).sum(1);
  return {((logits.logsumexp(1) - at_target) * kept.to(logits.dtype())).sum()};
}

using LinearCrossEntropyTest = DeviceTest;
HERO_ON_DEVICES(LinearCrossEntropyTest);

TEST_P(LinearCrossEntropyTest, ValuesAndGradients) {
  for (const auto& c : all_cases(kCrossEntropyCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " D " << c.width << " V " << c.vocabulary);
    // dx is rounded once when computed and once when scaled.
    check(loss, expected, operands_of(c), {kFp32},
          {{2.02 * kBf16Rounding, 8 * kBf16Rounding, 1.5 * kBf16Rounding}, kRoundedFactors});
  }
}

// The scaled gradient and the sum may be rounded once instead of twice; sums of three micro-batches cancel.
TEST_P(LinearCrossEntropyTest, ValuesOfAccumulatedGradients) {
  const double rounding = type() == at::kDouble ? 0x1p-52 : 0x1p-23;
  for (const auto& c : all_cases(kCrossEntropyCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " D " << c.width << " V " << c.vocabulary);
    check_accumulated(loss, operands_of(c), type(), device(), Tolerance{64 * rounding, 64 * rounding});
  }
}

TEST_P(LinearCrossEntropyTest, FrozenOperands) {
  for (const auto& c : all_cases(kCrossEntropyCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " D " << c.width << " V " << c.vocabulary);
    check_frozen(loss, operands_of(c), type(), device());
  }
}

TEST(LinearCrossEntropy, IgnoredTokensGetZeroGradients) {
  for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const auto operands = operands_of({65, 64, 272, true});
    const auto dx = run(loss, operands, type).gradients[0];
    EXPECT_TRUE(same(dx.slice(0, 0, 65, 3), at::zeros({22, 64}, type)));
    EXPECT_TRUE(dx.slice(0, 1, 65, 3).abs().amax(1).gt(0).all().item<bool>());

    auto none = operands;
    none[2].value = at::full({65}, -1, at::kLong);
    const auto result = run(loss, none, type);
    EXPECT_EQ(result.outputs[0].item<double>(), 0.0);
    EXPECT_EQ(result.gradients[0].abs().max().item<double>(), 0.0);
    EXPECT_EQ(result.gradients[1].abs().max().item<double>(), 0.0);
  }
}

TEST(LinearCrossEntropy, StaysFiniteWithLargeLogits) {
  auto operands = operands_of({65, 64, 272});
  operands[0].value = normal({65, 64}, 1, 400.0);
  operands[1].value = normal({272, 64}, 2, 4.0);
  EXPECT_GT(at::mm(operands[0].value, operands[1].value.t()).abs().max().item<double>(), 1e4);
  for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const auto got = run(loss, operands, type), want = run(expected, operands, at::kDouble);
    EXPECT_TRUE(close(got.outputs[0], want.outputs[0], kFp32));
    // In fp32 a logit of 1e4 has an absolute error of 1e-3, so its exponential has a relative error of 1e-3.
    EXPECT_TRUE(close(got.gradients[0], want.gradients[0], {4 * kBf16Rounding, 4 * kBf16Rounding}));
    EXPECT_TRUE(close(got.gradients[1], want.gradients[1], {4 * kBf16Rounding, 4 * kBf16Rounding}));
  }
}

// Training stops at a NaN loss, so NaN must propagate.
TEST(LinearCrossEntropy, PropagatesNan) {
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    auto x = normal({65, 64}, 1).to(type);
    const auto good = x.clone(), w = normal({272, 64}, 2).to(type);
    x[40][3].fill_(std::nan(""));
    const auto targets = integers(0, 272, {65}, 3);
    EXPECT_TRUE(ops::linear_cross_entropy(x, w, targets).isnan().item<bool>());
    w[271][3].fill_(std::nan(""));
    EXPECT_TRUE(ops::linear_cross_entropy(good, w, targets.clamp_max(270)).isnan().item<bool>());
  }
}

TEST(LinearCrossEntropy, SameLossWithoutGradients) {
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    const auto operands = operands_of({65, 64, 272, true});
    const auto x = operands[0].value.to(type), w = operands[1].value.to(type);
    const auto with = ops::linear_cross_entropy(x.clone().set_requires_grad(true), w, operands[2].value);
    EXPECT_TRUE(with.requires_grad());
    at::NoGradGuard no_grad;
    EXPECT_TRUE(same(ops::linear_cross_entropy(x, w, operands[2].value), with));
  }
}

TEST(LinearCrossEntropy, GradientsMatchFiniteDifferences) {
  check_finite_differences(loss, operands_of({5, 4, 6, true}));
}

TEST(LinearCrossEntropy, BitwiseReproducibleForAnyThreadCount) {
  if (!cpu::supports_gemm(16)) GTEST_SKIP() << "no fused kernels";
  for (const auto& c : all_cases(kCrossEntropyCases)) {
    if (c.width % 16 == 0) check_reproducible(loss, operands_of(c), at::kBFloat16);
  }
}

TEST(LinearCrossEntropy, RejectsInvalidArguments) {
  const auto x = at::zeros({4, 32}, at::kBFloat16), w = at::zeros({16, 32}, at::kBFloat16);
  EXPECT_EQ(error_of([&] { ops::linear_cross_entropy(x, at::zeros({16, 8}), at::zeros({4}, at::kLong)); }),
            "linear_cross_entropy: w must be [V, 32], got [16, 8]");
  EXPECT_EQ(error_of([&] { ops::linear_cross_entropy(x, w, at::zeros({5}, at::kLong)); }),
            "linear_cross_entropy: targets must be int64 [T] = [4], got Long [5]");
  EXPECT_EQ(error_of([&] { ops::linear_cross_entropy(x, w, at::zeros({4}, at::kInt)); }),
            "linear_cross_entropy: targets must be int64 [T] = [4], got Int [4]");
  for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    EXPECT_THROW(ops::linear_cross_entropy(x.to(type), w.to(type), at::full({4}, 16, at::kLong)), c10::Error);
  }
}

}  // namespace linear_cross_entropy_test
}  // namespace hero::test
