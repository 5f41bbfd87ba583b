#include <cmath>

#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/cpu/gemm.h"
#include "ops/ops.h"

namespace hero::test {
namespace attention_test {

constexpr double kScale = 0.31;

std::vector<Operand> operands_of(const AttentionCase& c) {
  return {{normal({c.batch, c.heads, c.queries, c.qk_width}, 1)},
          {normal({c.batch, c.kv_heads, c.keys, c.qk_width}, 2)},
          {normal({c.batch, c.kv_heads, c.keys, c.v_width}, 3)}};
}

std::vector<at::Tensor> attention(const std::vector<at::Tensor>& in) {
  return {ops::attention(in[0], in[1], in[2], kScale)};
}

// Query head h uses KV head h / (H / Hkv): heads are split into [Hkv, H / Hkv].
std::vector<at::Tensor> expected(const std::vector<at::Tensor>& in) {
  const int64_t kv = in[1].size(1), queries = in[0].size(2), keys = in[1].size(2);
  const auto q = in[0].unflatten(1, {kv, in[0].size(1) / kv});
  const auto future =
      at::arange(keys, q.options()).unsqueeze(0) > at::arange(keys - queries, keys, q.options()).unsqueeze(1);
  const auto scores =
      (at::matmul(q, in[1].unsqueeze(2).transpose(-1, -2)) * kScale).masked_fill(future, -INFINITY);
  return {at::matmul(scores.softmax(-1), in[2].unsqueeze(2)).flatten(1, 2)};
}

// Probabilities, gradients of the scores, and the output that the latter depend on, are rounded to bf16
// before the GEMMs. Elements dominated by a few large factors have larger errors.
constexpr Tolerance kOutput{4 * kBf16Rounding, 8 * kBf16Rounding, kBf16Rounding},
    kGradient{4 * kBf16Rounding, 16 * kBf16Rounding, 2 * kBf16Rounding};

using AttentionTest = DeviceTest;
HERO_ON_DEVICES(AttentionTest);

TEST_P(AttentionTest, ValuesAndGradients) {
  for (const auto& c : kAttentionCases) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message()
                 << "B " << c.batch << " H " << c.heads << "/" << c.kv_heads << " S " << c.queries << "/"
                 << c.keys << " Q " << c.qk_width << " P " << c.v_width);
    check(attention, expected, operands_of(c), {kOutput}, {kGradient, kGradient, kGradient});
  }
}

TEST(Attention, GradientsMatchFiniteDifferences) {
  check_finite_differences(attention, operands_of({1, 2, 1, 3, 3, 4, 4}));
  check_finite_differences(attention, operands_of({1, 2, 1, 2, 4, 4, 3}));
}

TEST(Attention, BitwiseReproducibleForAnyThreadCount) {
  if (!cpu::supports_gemm(16)) GTEST_SKIP() << "no fused kernels";
  for (const auto& c : kAttentionCases) {
    if (c.queries == c.keys && c.queries % 32 == 0)
      check_reproducible(attention, operands_of(c), at::kBFloat16);
  }
}

// Strided heads, as slices of one projection.
TEST_P(AttentionTest, ValuesOfStridedInputs) {
  const auto parts = [](const at::Tensor& t) {
    return std::vector<at::Tensor>{t.slice(2, 0, 4).transpose(1, 2), t.slice(2, 4, 6).transpose(1, 2),
                                   t.slice(2, 6, 8).transpose(1, 2)};
  };
  check([&](const auto& in) { return attention(parts(in[0])); },
        [&](const auto& in) { return expected(parts(in[0])); }, {{normal({2, 64, 8, 16}, 1)}}, {kOutput},
        {kGradient});
}

TEST(Attention, IsCausal) {
  const auto q = normal({1, 2, 6, 16}, 1), k = normal({1, 2, 6, 16}, 2), v = normal({1, 2, 6, 8}, 3);
  const auto whole = ops::attention(q, k, v, kScale);
  auto other_k = k.clone(), other_v = v.clone();
  other_k.slice(2, 4).fill_(7.0);
  other_v.slice(2, 4).fill_(7.0);
  EXPECT_TRUE(same(ops::attention(q, other_k, other_v, kScale).slice(2, 0, 4), whole.slice(2, 0, 4)));
}

TEST(Attention, MatchesOneQueryAtATime) {
  const auto q = normal({1, 2, 6, 16}, 1), k = normal({1, 2, 6, 16}, 2), v = normal({1, 2, 6, 8}, 3);
  const auto whole = ops::attention(q, k, v, kScale);
  for (int64_t s = 0; s < 6; ++s) {
    const auto row = ops::attention(q.slice(2, s, s + 1), k.slice(2, 0, s + 1), v.slice(2, 0, s + 1), kScale);
    EXPECT_TRUE(close(row, whole.slice(2, s, s + 1), kFp64)) << "position " << s;
  }
}

TEST(Attention, RejectsInvalidArguments) {
  const auto q = at::zeros({1, 3, 4, 8}), k = at::zeros({1, 2, 4, 8});
  EXPECT_EQ(error_of([&] { ops::attention(q, k, k, 1.0); }),
            "attention: expected q [B, H, S, Q], k [B, Hkv, S', Q], v [B, Hkv, S', P], got [1, 3, 4, 8], [1, "
            "2, 4, 8], "
            "[1, 2, 4, 8]");
}

}  // namespace attention_test
}  // namespace hero::test
