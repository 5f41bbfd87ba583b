// Queries, keys and values of latent attention, against slices, rotations and concatenations.
#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/ops.h"
#include "ops/random_cases.h"
#include "ops/reference.h"

namespace hero::test {
namespace latent_heads_test {

enum Output : size_t { kQ, kK, kV };

// Operands: queries, kv, a matrix whose last columns are the shared key, cos, sin. With `per_token`, every
// sequence has positions of its own.
std::vector<Operand> operands_of(const LatentHeadsCase& c, bool per_token = false) {
  const int64_t table_rows = per_token ? c.batch * c.positions : c.positions;
  return {{normal({c.batch, c.positions, c.heads, c.nope + c.rope}, 1)},
          {normal({c.batch, c.positions, c.heads, c.nope + c.v_width}, 2)},
          {normal({c.batch, c.positions, 8 + c.rope}, 3)},
          {normal({table_rows, c.rope / 2}, 4), Role::kAccumulate, false},
          {normal({table_rows, c.rope / 2}, 5), Role::kAccumulate, false}};
}

Function operator_of(bool interleave) {
  return [=](const std::vector<at::Tensor>& in) {
    const auto [q, k, v] = ops::latent_heads(in[0], in[1], in[2].slice(2, 8), in[3], in[4], interleave);
    return std::vector{q, k, v};
  };
}

// Differentiated by autograd, operation by operation.
Function composition(bool interleave) {
  return [=](const std::vector<at::Tensor>& in) {
    const auto key = in[2].slice(2, 8);
    const auto rotated = [&](const at::Tensor& x) {
      const auto rows = in[3].size(0) == x.size(1) ? x : x.reshape({1, -1, x.size(2), x.size(3)});
      return ops::rope_reference(rows, in[3], in[4], interleave, /*inverse=*/false).view(x.sizes());
    };
    const int64_t nope = in[0].size(3) - key.size(2);
    const auto shared = rotated(key.unsqueeze(2)).expand({-1, -1, in[0].size(2), -1});
    return std::vector{at::cat({in[0].slice(3, 0, nope), rotated(in[0].slice(3, nope))}, 3),
                       at::cat({in[1].slice(3, 0, nope), shared}, 3), in[1].slice(3, nope)};
  };
}

// The chosen outputs of f only.
Function part_of(const Function& f, const std::vector<Output>& outputs) {
  return [=](const std::vector<at::Tensor>& in) {
    const auto all = f(in);
    std::vector<at::Tensor> part;
    part.reserve(outputs.size());
    for (const auto output : outputs) part.push_back(all[output]);
    return part;
  };
}

std::string name_of_case(const LatentHeadsCase& c, bool interleave, bool per_token) {
  return "B " + std::to_string(c.batch) + " S " + std::to_string(c.positions) + " H " +
         std::to_string(c.heads) + " N " + std::to_string(c.nope) + " R " + std::to_string(c.rope) + " P " +
         std::to_string(c.v_width) + (interleave ? " interleaved" : "") + (per_token ? " per token" : "");
}

// Calls f(case, interleave, per_token, name).
template <typename F>
void for_cases(const F& f, bool timed) {
  for (const auto& c : all_cases(kLatentHeadsCases)) {
    if (c.timed && !timed) continue;
    for (const bool interleave : {false, true}) {
      for (const bool per_token : {false, true})
        f(c, interleave, per_token, name_of_case(c, interleave, per_token));
    }
  }
}

using LatentHeadsTest = DeviceTest;
HERO_ON_DEVICES(LatentHeadsTest);

TEST_P(LatentHeadsTest, ValuesAndGradients) {
  for_cases(
      [&](const LatentHeadsCase& c, bool interleave, bool per_token, const std::string& name) {
        SCOPED_TRACE(name);
        check(operator_of(interleave), composition(interleave), operands_of(c, per_token),
              {kRoundedOnce, kRoundedOnce, {0, 0}}, {kRoundedOnce, kRoundedOnce, kRoundedOnce});
      },
      /*timed=*/type() == at::kBFloat16);
}

// The unused outputs have undefined gradients.
TEST_P(LatentHeadsTest, ValuesAndGradientsOfSomeOutputs) {
  const LatentHeadsCase c{2, 5, 3, 16, 8, 24};
  for (const auto& outputs : std::vector<std::vector<Output>>{{kQ}, {kK}, {kV}, {kQ, kV}, {kK, kV}}) {
    SCOPED_TRACE(::testing::PrintToString(outputs));
    const auto operands = operands_of(c);
    const auto got = run(part_of(operator_of(true), outputs), operands, type(), device()),
               want = run(part_of(composition(true), outputs), operands, at::kDouble);
    for (size_t i = 0; i < got.outputs.size(); ++i)
      EXPECT_TRUE(close(got.outputs[i], want.outputs[i], tolerance(kRoundedOnce))) << "output " << i;
    for (size_t i = 0; i < got.gradients.size(); ++i) {
      const auto& expected = want.gradients[i];
      EXPECT_TRUE(close(got.gradients[i], expected.defined() ? expected : at::zeros_like(got.gradients[i]),
                        tolerance(kRoundedOnce)))
          << "gradient " << i;
    }
  }
}

// cuDNN's attention returns gradients [B, H, S, .] in memory [B, S, H, .]; other layouts are copied.
TEST_P(LatentHeadsTest, ValuesAndGradientsOfOtherLayouts) {
  const auto transposed = [](const Function& f) {
    return [=](const std::vector<at::Tensor>& in) {
      auto outputs = f({in[0].transpose(1, 2), in[1].transpose(1, 2), in[2].transpose(1, 2), in[3], in[4]});
      for (auto& output : outputs) output = output.transpose(2, 3);
      return outputs;
    };
  };
  const std::vector<Operand> operands = {{normal({2, 3, 5, 24}, 1)},
                                         {normal({2, 3, 5, 32}, 2)},
                                         {normal({2, 16, 5}, 3)},
                                         {normal({5, 4}, 4), Role::kAccumulate, false},
                                         {normal({5, 4}, 5), Role::kAccumulate, false}};
  for (const bool interleave : {false, true}) {
    check(transposed(operator_of(interleave)), transposed(composition(interleave)), operands,
          {kRoundedOnce, kRoundedOnce, {0, 0}}, {kRoundedOnce, kRoundedOnce, kRoundedOnce});
  }
}

// Except the gradient of the shared key, which the composition rounds before it sums.
TEST(LatentHeads, ReferenceEqualsTheComposition) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for_cases(
        [&](const LatentHeadsCase& c, bool interleave, bool per_token, const std::string& name) {
          SCOPED_TRACE(name);
          const auto operands = operands_of(c, per_token);
          const auto got = run(operator_of(interleave), operands, type),
                     want = run(composition(interleave), operands, type);
          for (const auto output : {kQ, kK, kV}) EXPECT_TRUE(same(got.outputs[output], want.outputs[output]));
          for (const size_t i : {0, 1}) EXPECT_TRUE(same(got.gradients[i], want.gradients[i]));
        },
        /*timed=*/false);
  }
}

TEST(LatentHeads, GradientsMatchFiniteDifferences) {
  for (const bool interleave : {false, true})
    check_finite_differences(operator_of(interleave), operands_of({2, 2, 2, 3, 4, 1}));
}

TEST(LatentHeads, BitwiseReproducibleForAnyThreadCount) {
  check_reproducible(operator_of(false), operands_of({2, 130, 3, 16, 32, 24}), at::kBFloat16);
}

TEST(LatentHeads, ValuesAreAView) {
  const auto kv = at::zeros({1, 2, 3, 8}), table = at::zeros({2, 2});
  const auto v = ops::latent_heads(at::zeros({1, 2, 3, 9}), kv, at::zeros({1, 2, 4}), table, table, true).v;
  EXPECT_TRUE(v.is_alias_of(kv));
  EXPECT_EQ(v.sizes(), at::IntArrayRef({1, 2, 3, 3}));
}

TEST(LatentHeads, RejectsInvalidArguments) {
  const auto heads = [](int64_t width) { return at::zeros({2, 3, 1, width}); };
  const auto key = at::zeros({2, 3, 4}), table = at::zeros({3, 2});
  EXPECT_EQ(error_of([&] { ops::latent_heads(heads(6), heads(5), at::zeros({2, 3}), table, table, true); }),
            "latent_heads: expected queries [B, S, H, N+R], kv [B, S, H, N+P] and key [B, S, R], got "
            "[2, 3, 1, 6], [2, 3, 1, 5] and [2, 3]");
  EXPECT_EQ(error_of([&] { ops::latent_heads(heads(6), heads(1), key, table, table, true); }),
            "latent_heads: R must be even, and N from 0 to kv's width 1, got 4 and 2");
  EXPECT_EQ(error_of([&] { ops::latent_heads(heads(6), heads(5), key.to(at::kDouble), table, table, true); }),
            "latent_heads: queries, kv and key must have one type, got Float, Float and Double");
  EXPECT_EQ(error_of([&] { ops::latent_heads(heads(6), heads(5), key, at::zeros({4, 2}), table, true); }),
            "latent_heads: cos and sin must be [S, R/2] = [3, 2] or [B*S, R/2], got [4, 2] and [3, 2]");
}

}  // namespace latent_heads_test
}  // namespace hero::test
