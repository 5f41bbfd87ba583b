#include <cmath>
#include <utility>
#include <vector>

#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/cpu/gemm.h"
#include "ops/cuda/attention_parts.h"
#include "ops/cuda_library.h"
#include "ops/ops.h"
#include "ops/random_cases.h"

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

std::vector<Operand> operands_of(const DocumentAttentionCase& c) {
  auto operands = operands_of({c.batch, c.heads, c.kv_heads, c.length, c.length, c.qk_width, c.v_width});
  const auto starts = at::tensor(document_starts(c.batch, c.length, c.documents), at::kLong);
  operands.push_back({starts.view({c.batch, c.length}), Role::kFixed});
  return operands;
}

std::vector<at::Tensor> document_attention(const std::vector<at::Tensor>& in) {
  return {ops::attention(in[0], in[1], in[2], kScale, in[3])};
}

// Each document of each sequence on its own.
std::vector<at::Tensor> documents_alone(const std::vector<at::Tensor>& in) {
  std::vector<at::Tensor> sequences;
  for (int64_t b = 0; b < in[0].size(0); ++b) {
    const auto starts = in[3][b].to(at::kCPU).contiguous();
    const auto* start = starts.const_data_ptr<int64_t>();
    std::vector<at::Tensor> documents;
    for (int64_t first = 0, end = 0; first < starts.size(0); first = end) {
      while (end < starts.size(0) && start[end] == first) ++end;
      const auto part = [&](const at::Tensor& x) { return x.slice(0, b, b + 1).slice(2, first, end); };
      documents.push_back(expected({part(in[0]), part(in[1]), part(in[2])})[0]);
    }
    sequences.push_back(at::cat(documents, 2));
  }
  return {at::cat(sequences, 0)};
}

using AttentionTest = DeviceTest;
HERO_ON_DEVICES(AttentionTest);

// In fp32, where LibTorch's kernels compute, errors grow with the width of the keys.
constexpr int64_t kMaxWidthFp32 = 48;

TEST_P(AttentionTest, ValuesAndGradients) {
  for (const auto& c : all_cases(kAttentionCases)) {
    if (c.timed || (type() == at::kFloat && c.qk_width > kMaxWidthFp32)) continue;
    SCOPED_TRACE(::testing::Message()
                 << "B " << c.batch << " H " << c.heads << "/" << c.kv_heads << " S " << c.queries << "/"
                 << c.keys << " Q " << c.qk_width << " P " << c.v_width);
    const auto gradient = kGradient * c.slack;
    check(attention, expected, operands_of(c), {kOutput * c.slack}, {gradient, gradient, gradient});
  }
}

TEST_P(AttentionTest, DocumentsMatchEachDocumentAlone) {
  for (const auto& c : all_cases(document_attention_cases())) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message() << "B " << c.batch << " H " << c.heads << "/" << c.kv_heads << " S "
                                      << c.length << " Q " << c.qk_width << " P " << c.v_width);
    const auto gradient = kGradient * c.slack;
    check(document_attention, documents_alone, operands_of(c), {kOutput * c.slack},
          {gradient, gradient, gradient});
  }
}

// Lengths next to those of blocks: the fused kernels zero-pad their operands.
TEST_P(AttentionTest, SequencesOfAnyLength) {
  for (const int64_t length : {2, 15, 17, 31, 63, 65, 127, 131, 200}) {
    SCOPED_TRACE(::testing::Message() << "S " << length);
    check(attention, expected, operands_of(AttentionCase{2, 4, 2, length, length, 16, 32}), {kOutput},
          {kGradient, kGradient, kGradient});
  }
}

// Documents from 1 position to two blocks of queries.
TEST_P(AttentionTest, DocumentsOfRandomLengths) {
  const int64_t sequences[] = {192, 77, 131, 179, 33, 250};
  for (uint64_t seed = 1; seed <= std::size(sequences); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const auto drawn = integers(0, 8, {12}, seed) + 1;
    const auto lengths = (drawn * drawn * integers(1, 3, {12}, seed + 100)).clamp(1, 128).contiguous();
    const auto* first = lengths.const_data_ptr<int64_t>();
    const DocumentAttentionCase c{2, 2, 1, sequences[seed - 1], 16, 32, {first, first + lengths.numel()}};
    check(document_attention, documents_alone, operands_of(c), {kOutput}, {kGradient, kGradient, kGradient});
  }
}

// On a GPU the backward pass of such a batch runs in parts.
TEST(Attention, PartsOfABatchOnCuda) {
  if (!load_cuda_library()) GTEST_SKIP() << cuda_unavailable_reason();
  const AttentionCase whole{3, 24, 12, 4096, 4096, 64, 32};
  const auto parts = ops::cuda::attention_parts(whole.batch, whole.heads, whole.kv_heads, whole.queries);
  ASSERT_TRUE(parts && parts->sequences == 1);
  const auto operands = operands_of(whole);
  const auto all = run(attention, operands, at::kBFloat16, at::kCUDA),
             again = run(attention, operands, at::kBFloat16, at::kCUDA);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same(all.gradients[i], again.gradients[i])) << i;
  const auto exact = run(expected, operands, at::kFloat, at::kCUDA);
  const Tolerance of_millions{kGradient.relative, 2 * kGradient.absolute, kGradient.norm};
  EXPECT_TRUE(close(all.outputs[0], exact.outputs[0], kOutput));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(close(all.gradients[i], exact.gradients[i], of_millions)) << i;
}

TEST(Attention, PartsAreTheLargestWithinTheBound) {
  const auto parts = [](int64_t batch, int64_t heads, int64_t kv_heads, int64_t length) {
    const auto found = ops::cuda::attention_parts(batch, heads, kv_heads, length);
    return found ? std::pair(found->sequences, found->kv_heads) : std::pair<int64_t, int64_t>();
  };
  EXPECT_EQ(parts(4, 16, 16, 4096), std::pair(4L, 16L));  // exactly the bound
  EXPECT_EQ(parts(8, 16, 16, 4096), std::pair(4L, 16L));
  EXPECT_EQ(parts(6, 16, 16, 4096), std::pair(3L, 16L));
  EXPECT_EQ(parts(7, 16, 4, 4096), std::pair(1L, 4L));
  EXPECT_EQ(parts(2, 16, 16, 16384), std::pair(1L, 4L));
  EXPECT_EQ(parts(2, 16, 8, 16384), std::pair(1L, 2L));
  EXPECT_EQ(parts(1, 16, 16, 32768), std::pair(1L, 1L));
  EXPECT_EQ(parts(1, 16, 8, 32768), std::pair(0L, 0L));  // two heads with one KV head exceed it
}

// Lengths around multiples of 16 and of blocks of queries. Errors relative to the largest output; a result
// takes up to 160 additions, and exp_fast has an error of 2e-7.
TEST(Attention, PrefillInFp32) {
  const std::vector<std::pair<int64_t, int64_t>> widths = {{16, 16}, {32, 16}, {48, 64}, {24, 16}};
  for (const int64_t length : {1, 2, 15, 16, 17, 33, 63, 64, 65, 129, 160}) {
    for (const auto& [qk_width, v_width] : widths) {
      SCOPED_TRACE(::testing::Message() << "S " << length << " Q " << qk_width << " P " << v_width);
      std::vector<at::Tensor> in, wide;
      for (const auto& operand : operands_of(AttentionCase{2, 4, 2, length, length, qk_width, v_width})) {
        in.push_back(operand.value.to(at::kFloat));
        wide.push_back(in.back().to(at::kDouble));
      }
      const auto wanted = expected(wide)[0];
      const auto got = ops::prefill_attention(in[0], in[1], in[2], kScale).to(at::kDouble);
      const auto error = (got - wanted).abs().max() / wanted.abs().max();
      EXPECT_LT(error.item<double>(), 2e-6);
    }
  }
}

TEST(Attention, OneDocumentIsBitwiseCausal) {
  const DocumentAttentionCase c{2, 4, 2, 160, 32, 16, {160}};
  const auto operands = operands_of(c);
  const auto with = run(document_attention, operands, at::kBFloat16),
             without = run(attention, operands, at::kBFloat16);
  EXPECT_TRUE(same(with.outputs[0], without.outputs[0]));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same(with.gradients[i], without.gradients[i])) << i;
}

// Bitwise, also for values in skipped and partly visible blocks of keys.
TEST(Attention, EarlierDocumentsHaveNoInfluence) {
  for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const auto in = operands_of(DocumentAttentionCase{1, 2, 1, 160, 16, 16, {70, 90}});
    const auto of = [&](size_t i) { return in[i].value.to(type); };
    auto other_k = of(1).clone(), other_v = of(2).clone();
    other_k.slice(2, 0, 70).fill_(7.0);
    other_v.slice(2, 0, 70).fill_(-7.0);
    const auto whole = ops::attention(of(0), of(1), of(2), kScale, in[3].value),
               changed = ops::attention(of(0), other_k, other_v, kScale, in[3].value);
    EXPECT_TRUE(same(changed.slice(2, 70), whole.slice(2, 70))) << type;
    EXPECT_FALSE(same(changed.slice(2, 0, 70), whole.slice(2, 0, 70))) << type;
  }
}

TEST(Attention, GradientsMatchFiniteDifferences) {
  check_finite_differences(document_attention, operands_of(DocumentAttentionCase{2, 2, 1, 5, 4, 3, {2, 1}}));
  check_finite_differences(attention, operands_of({1, 2, 1, 3, 3, 4, 4}));
  check_finite_differences(attention, operands_of({1, 2, 1, 2, 4, 4, 3}));
}

TEST(Attention, BitwiseReproducibleForAnyThreadCount) {
  if (!cpu::supports_gemm(16)) GTEST_SKIP() << "no fused kernels";
  for (const auto& c : all_cases(kAttentionCases)) {
    if (c.queries == c.keys && c.qk_width % 16 == 0 && c.v_width % 16 == 0)
      check_reproducible(attention, operands_of(c), at::kBFloat16);
  }
  for (const auto& c : all_cases(document_attention_cases())) {
    if (c.qk_width % 16 == 0 && c.v_width % 16 == 0 && !c.timed)
      check_reproducible(document_attention, operands_of(c), at::kBFloat16);
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
  const auto error = [&](const at::Tensor& starts) {
    return error_of([&] { ops::attention(k, k, k, 1.0, starts); });
  };
  const std::string shape =
      "attention: with as many queries as keys, starts must be int64 [B, S] = [1, 4], got ";
  EXPECT_EQ(error(at::zeros({4}, at::kLong)), shape + "Long [4] and 4 keys");
  EXPECT_EQ(error(at::zeros({1, 4}, at::kInt)), shape + "Int [1, 4] and 4 keys");
  EXPECT_EQ(error(at::tensor({0, 0, 3, 3}, at::kLong).view({1, 4})),
            "attention: starts[0][2] must be in [0, 2], got 3");
  EXPECT_EQ(error(at::tensor({0, 1, 0, 0}, at::kLong).view({1, 4})),
            "attention: starts[0][2] must be in [1, 2], got 0");
}

}  // namespace attention_test
}  // namespace hero::test
