// Row-wise operators: rms_norm, add_rms_norm, swiglu, rope, norm_rope, embedding.
#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/ops.h"
#include "ops/random_cases.h"

namespace hero::test {
namespace rows_test {

constexpr double kEps = 1e-5;

std::vector<at::Tensor> rms_norm(const std::vector<at::Tensor>& in) {
  return {ops::rms_norm(in[0], in[1], kEps)};
}
std::vector<at::Tensor> expected_rms_norm(const std::vector<at::Tensor>& in) {
  return {in[0] / at::sqrt(in[0].square().mean(-1, true) + kEps) * in[1]};
}
std::vector<Operand> rms_norm_operands(const RowsCase& c) {
  return {{normal({c.tokens, c.width}, 1)}, {normal({c.width}, 2), Role::kWeight}};
}

std::vector<at::Tensor> swiglu(const std::vector<at::Tensor>& in) { return {ops::swiglu(in[0])}; }
std::vector<at::Tensor> expected_swiglu(const std::vector<at::Tensor>& in) {
  const auto parts = in[0].chunk(2, -1);
  return {parts[0] / (1 + at::exp(-parts[0])) * parts[1]};
}

using RmsNormTest = DeviceTest;
HERO_ON_DEVICES(RmsNormTest);

TEST_P(RmsNormTest, ValuesAndGradients) {
  for (const auto& c : all_cases(kRmsNormCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " D " << c.width);
    check(rms_norm, expected_rms_norm, rms_norm_operands(c), {kRoundedOnce}, {kRoundedOnce, kFp32});
  }
  const auto view = [](const auto& f) {
    return [&f](const std::vector<at::Tensor>& in) {
      return f({in[0].transpose(0, 1).slice(-1, 8, 56), in[1]});
    };
  };
  check(view(rms_norm), view(expected_rms_norm), {{normal({3, 7, 80}, 1)}, {normal({48}, 2), Role::kWeight}},
        {kRoundedOnce}, {kRoundedOnce, kFp32});
}

TEST(RmsNorm, GradientsMatchFiniteDifferences) {
  check_finite_differences(rms_norm, rms_norm_operands({4, 6}));
}

TEST(RmsNorm, BitwiseReproducibleForAnyThreadCount) {
  for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    check_reproducible(rms_norm, rms_norm_operands({300, 48}), type);
    check_reproducible(rms_norm, rms_norm_operands({1200, 4100}),
                       type);  // enough strips to also split the sum over strips
  }
}

TEST(RmsNorm, RejectsInvalidArguments) {
  EXPECT_EQ(error_of([] { ops::rms_norm(at::zeros({4, 32}), at::zeros({16}), kEps); }),
            "rms_norm: w must be [D] = [32], got [16]");
}

std::vector<at::Tensor> add_rms_norm(const std::vector<at::Tensor>& in) {
  const auto [sum, normed] = ops::add_rms_norm(in[0], in.size() > 2 ? in[2] : at::Tensor(), in[1], kEps);
  return {sum, normed};
}
std::vector<at::Tensor> expected_add_rms_norm(const std::vector<at::Tensor>& in) {
  const auto sum = in.size() > 2 ? in[0] + in[2] : in[0] * 1;
  return {sum, expected_rms_norm({sum, in[1]})[0]};
}
// Multiples of 1/16 below 4: their sums are exact in bf16.
at::Tensor sixteenths(at::IntArrayRef sizes, uint64_t seed) {
  return (normal(sizes, seed) * 16).round().clamp(-63, 63) / 16;
}
std::vector<Operand> add_rms_norm_operands(const RowsCase& c) {
  return {{sixteenths({c.tokens, c.width}, 1)},
          {normal({c.width}, 2), Role::kWeight},
          {sixteenths({c.tokens, c.width}, 3)}};
}

using AddRmsNormTest = DeviceTest;
HERO_ON_DEVICES(AddRmsNormTest);

TEST_P(AddRmsNormTest, ValuesAndGradients) {
  for (const auto& c : all_cases(kRmsNormCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " D " << c.width);
    const auto operands = add_rms_norm_operands(c);
    check(add_rms_norm, expected_add_rms_norm, operands, {{0, 0}, kRoundedOnce},
          {kRoundedOnce, kFp32, kRoundedOnce});
    check(add_rms_norm, expected_add_rms_norm, {operands[0], operands[1]}, {{0, 0}, kRoundedOnce},
          {kRoundedOnce, kFp32});
  }
  const auto view = [](const auto& f) {
    return [&f](const std::vector<at::Tensor>& in) {
      const auto part = [](const at::Tensor& x) { return x.transpose(0, 1).slice(-1, 8, 56); };
      return f({part(in[0]), in[1], part(in[2])});
    };
  };
  check(view(add_rms_norm), view(expected_add_rms_norm),
        {{sixteenths({3, 7, 80}, 1)}, {normal({48}, 2), Role::kWeight}, {sixteenths({3, 7, 80}, 3)}},
        {{0, 0}, kRoundedOnce}, {kRoundedOnce, kFp32, kRoundedOnce});
}

TEST_P(AddRmsNormTest, NormalizesTheRoundedSum) {
  const auto options = [&](const at::Tensor& t) { return t.to(device(), type()); };
  const auto x = options(normal({33, 80}, 1)), update = options(normal({33, 80}, 2)),
             w = options(normal({80}, 3));
  const auto [sum, normed] = ops::add_rms_norm(x, update, w, kEps);
  EXPECT_TRUE(same(sum, x + update));
  EXPECT_TRUE(same(normed, ops::rms_norm(x + update, w, kEps)));
}

TEST(AddRmsNorm, GradientsMatchFiniteDifferences) {
  check_finite_differences(add_rms_norm, add_rms_norm_operands({4, 6}));
}

TEST(AddRmsNorm, BitwiseReproducibleForAnyThreadCount) {
  for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble})
    check_reproducible(add_rms_norm, add_rms_norm_operands({300, 48}), type);
}

TEST(AddRmsNorm, RejectsInvalidArguments) {
  EXPECT_EQ(error_of([] { ops::add_rms_norm(at::zeros({4, 32}), {}, at::zeros({16}), kEps); }),
            "add_rms_norm: w must be [D] = [32], got [16]");
  EXPECT_EQ(
      error_of([] { ops::add_rms_norm(at::zeros({4, 32}), at::zeros({2, 32}), at::zeros({32}), kEps); }),
      "add_rms_norm: update must have the type and shape of x, Float [4, 32], got Float [2, 32]");
}

using SwigluTest = DeviceTest;
HERO_ON_DEVICES(SwigluTest);

TEST_P(SwigluTest, ValuesAndGradients) {
  for (const auto& c : all_cases(kSwigluCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " 2F " << c.width);
    check(swiglu, expected_swiglu, {{normal({c.tokens, c.width}, 1, 3.0)}}, {kRoundedOnce}, {kRoundedOnce});
  }
  const auto view = [](const auto& f) {
    return [&f](const std::vector<at::Tensor>& in) { return f({in[0].transpose(0, 1).slice(-1, 8, 56)}); };
  };
  check(view(swiglu), view(expected_swiglu), {{normal({3, 7, 80}, 1)}}, {kRoundedOnce}, {kRoundedOnce});
}

TEST(Swiglu, GradientsMatchFiniteDifferences) { check_finite_differences(swiglu, {{normal({3, 8}, 1)}}); }

TEST(Swiglu, StaysFiniteWhenGateSaturates) {
  const auto gate = at::tensor({-1e4, -88.0, -87.0, 0.0, 88.0, 1e4}).to(at::kBFloat16);
  const auto y = ops::swiglu(at::cat({gate, at::ones_like(gate)}).unsqueeze(0)).squeeze(0).to(at::kDouble);
  EXPECT_TRUE(close(y, at::silu(gate.to(at::kDouble)), {1.01 * kBf16Rounding, 1e-9}));
}

TEST(Swiglu, BitwiseReproducibleForAnyThreadCount) {
  check_reproducible(swiglu, {{normal({130, 96}, 1)}}, at::kBFloat16);
}

TEST(Swiglu, RejectsInvalidArguments) {
  EXPECT_EQ(error_of([] { ops::swiglu(at::zeros({4, 33})); }),
            "swiglu: the last dimension must be 2F, got [4, 33]");
}

using RopeTest = DeviceTest;
HERO_ON_DEVICES(RopeTest);

// Each pair (a, b) becomes (a cos - b sin, a sin + b cos), written as a complex product.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleave) {
  const int64_t half = x.size(-1) / 2;
  const auto pairs = interleave ? x.unflatten(-1, {half, 2}) : x.unflatten(-1, {2, half}).transpose(-1, -2);
  const auto y =
      at::view_as_real(at::view_as_complex(pairs.contiguous()) * at::complex(cos, sin).unsqueeze(1));
  return interleave ? y.flatten(-2) : y.transpose(-1, -2).flatten(-2);
}

TEST_P(RopeTest, ValuesAndGradients) {
  for (const auto& c : all_cases(kRopeCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    for (const bool interleave : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "B " << c.batch << " S " << c.positions << " H " << c.heads
                                        << " R " << c.width << (interleave ? " interleaved" : ""));
      const std::vector<Operand> operands = {
          {normal({c.batch, c.positions, c.heads, c.width + 2}, 1)},
          {normal({c.positions, c.width / 2}, 2), Role::kAccumulate, false},
          {normal({c.positions, c.width / 2}, 3), Role::kAccumulate, false}};
      const auto view = [](const at::Tensor& x) { return x.slice(-1, 2); };
      check([&](const auto& in) { return std::vector{ops::rope(view(in[0]), in[1], in[2], interleave)}; },
            [&](const auto& in) { return std::vector{rotated(view(in[0]), in[1], in[2], interleave)}; },
            operands, {{1.01 * kBf16Rounding, 1e-5}}, {kRoundedOnce});
    }
  }
}

TEST(Rope, InverseRotationRestoresInput) {
  const auto angle = at::arange(40, at::kDouble).view({8, 5}) * 0.37;
  const auto x = normal({2, 8, 3, 10}, 1);
  for (const bool interleave : {false, true}) {
    const auto y = ops::rope(x, angle.cos(), angle.sin(), interleave);
    EXPECT_TRUE(close(ops::rope(y, angle.cos(), -angle.sin(), interleave), x, kFp64));
  }
}

TEST(Rope, BitwiseReproducibleForAnyThreadCount) {
  check_reproducible([](const auto& in) { return std::vector{ops::rope(in[0], in[1], in[2], false)}; },
                     {{normal({2, 130, 3, 32}, 1)},
                      {normal({130, 16}, 2), Role::kAccumulate, false},
                      {normal({130, 16}, 3), Role::kAccumulate, false}},
                     at::kBFloat16);
}

TEST(Rope, RejectsInvalidArguments) {
  const auto x = at::zeros({1, 4, 2, 8});
  EXPECT_EQ(error_of([&] { ops::rope(at::zeros({4, 8}), x, x, true); }),
            "rope: x must be [B, S, H, R] with R even, got [4, 8]");
  EXPECT_EQ(error_of([&] { ops::rope(x, at::zeros({4, 8}), at::zeros({4, 8}), true); }),
            "rope: cos and sin must be [S, R/2] = [4, 4], got [4, 8]");
}

using NormRopeTest = DeviceTest;
HERO_ON_DEVICES(NormRopeTest);

// Heads are a slice of a wider projection.
std::vector<at::Tensor> norm_rope(const std::vector<at::Tensor>& in) {
  return {ops::norm_rope(in[0].slice(2, 1), in[1], kEps, in[2], in[3])};
}
std::vector<at::Tensor> expected_norm_rope(const std::vector<at::Tensor>& in) {
  return {rotated(expected_rms_norm({in[0].slice(2, 1), in[1]})[0], in[2], in[3], /*interleave=*/false)};
}
std::vector<Operand> norm_rope_operands(const RopeCase& c) {
  return {{normal({c.batch, c.positions, c.heads + 2, c.width}, 1)},
          {normal({c.width}, 4), Role::kWeight},
          {normal({c.positions, c.width / 2}, 2), Role::kAccumulate, false},
          {normal({c.positions, c.width / 2}, 3), Role::kAccumulate, false}};
}

TEST_P(NormRopeTest, ValuesAndGradients) {
  for (const auto& c : all_cases(kRopeCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    SCOPED_TRACE(::testing::Message()
                 << "B " << c.batch << " S " << c.positions << " H " << c.heads << " R " << c.width);
    check(norm_rope, expected_norm_rope, norm_rope_operands(c), {kRoundedOnce}, {kRoundedOnce, kFp32});
  }
}

TEST(NormRope, GradientsMatchFiniteDifferences) {
  check_finite_differences(norm_rope, norm_rope_operands({1, 2, 2, 4}));
}

TEST(NormRope, BitwiseReproducibleForAnyThreadCount) {
  check_reproducible(norm_rope, norm_rope_operands({2, 130, 3, 32}), at::kBFloat16);
}

TEST(NormRope, RejectsInvalidArguments) {
  const auto x = at::zeros({1, 3, 2, 8}), table = at::zeros({3, 4});
  EXPECT_EQ(error_of([&] { ops::norm_rope(x, at::zeros({4}), kEps, table, table); }),
            "norm_rope: expected x [B, S, H, R] with R even and w [R], got [1, 3, 2, 8] and [4]");
}

using EmbeddingTest = DeviceTest;
HERO_ON_DEVICES(EmbeddingTest);

TEST_P(EmbeddingTest, ValuesAndGradients) {
  for (const auto& c : all_cases(kEmbeddingCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " V " << c.vocabulary << " D " << c.width);
    const std::vector<Operand> operands = {{integers(0, c.vocabulary, {c.tokens}, 1), Role::kFixed},
                                           {normal({c.vocabulary, c.width}, 2), Role::kWeight}};
    const auto one_hot = [&](const std::vector<at::Tensor>& in) {
      return std::vector{at::mm(at::one_hot(in[0], c.vocabulary).to(at::kDouble), in[1])};
    };
    check([](const auto& in) { return std::vector{ops::embedding(in[0], in[1])}; }, one_hot, operands,
          {{0, 0}}, {kFp32});
  }
}

TEST(Embedding, BitwiseReproducibleForAnyThreadCount) {
  check_reproducible([](const auto& in) { return std::vector{ops::embedding(in[0], in[1])}; },
                     {{integers(0, 7, {500}, 1), Role::kFixed}, {normal({9, 33}, 2), Role::kWeight}},
                     at::kBFloat16);
}

TEST(Embedding, UnusedRowsGetZeroGradients) {
  const auto result = run(
      [](const auto& in) { return std::vector{ops::embedding(in[0], in[1])}; },
      {{at::tensor({1, 3, 3}, at::kLong), Role::kFixed}, {normal({5, 16}, 2), Role::kWeight}}, at::kBFloat16);
  EXPECT_TRUE(
      same(result.gradients[0].index_select(0, at::tensor({0, 2, 4}, at::kLong)), at::zeros({3, 16})));
}

TEST(Embedding, RejectsInvalidArguments) {
  EXPECT_EQ(error_of([] { ops::embedding(at::zeros({3}, at::kInt), at::zeros({4, 2})); }),
            "embedding: ids must be int64, got Int");
  EXPECT_EQ(error_of([] { ops::embedding(at::zeros({3}, at::kLong), at::zeros({4})); }),
            "embedding: w must be [V, D], got [4]");
  EXPECT_THROW(ops::embedding(at::full({1}, 4, at::kLong), at::zeros({4, 2})), c10::Error);
  EXPECT_THROW(ops::embedding(at::full({1}, -1, at::kLong), at::zeros({4, 2})), c10::Error);
}

}  // namespace rows_test
}  // namespace hero::test
