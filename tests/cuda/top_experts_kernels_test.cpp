// Top-k routing against the fp64 references.
#include "cuda/run.h"
#include "ops/cases.h"
#include "ops/cuda/kernels/top_experts.cuh"
#include "ops/random_cases.h"
#include "ops/reference.h"

namespace hero::test {
namespace top_experts_kernels_test {

using namespace ops::cuda;

// Grid values: sums are exact and there are many ties.
at::Tensor grid(at::IntArrayRef shape, uint64_t seed) {
  return integers(-100, 100, shape, seed).to(at::kFloat) / 64;
}

template <int parts>
at::Tensor selected(const TopExpertsCase& c, const at::Tensor& scores, const at::Tensor& bias) {
  at::Tensor ids = at::full({c.tokens, c.k}, -1, at::kLong);
  const TopExpertsParams params{.rows = c.tokens,
                                .experts = c.experts,
                                .k = c.k,
                                .scores = scores.const_data_ptr<float>(),
                                .bias = c.biased ? bias.const_data_ptr<float>() : nullptr,
                                .groups = c.groups,
                                .kept_groups = c.kept_groups,
                                .ids = ids.data_ptr<int64_t>()};
  launch({ids}, select_experts<parts>, blocks(c.tokens, kSelectWarps), {kWarpSize, kSelectWarps}, params);
  return ids;
}

TEST(CudaTopExperts, Values) {
  for (const auto& c : all_cases(kTopExpertsCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message() << "E " << c.experts << " K " << c.k << " groups " << c.groups);
    const auto scores = grid({c.tokens, c.experts}, 1), bias = grid({c.experts}, 2);
    const auto want = ops::top_experts_reference(
        scores.to(at::kDouble), c.biased ? std::optional(bias.to(at::kDouble)) : std::nullopt, c.k, c.groups,
        c.kept_groups);
    EXPECT_TRUE(same(selected<32>(c, scores, bias), want));
    if (c.experts <= 2 * kWarpSize) {
      EXPECT_TRUE(same(selected<2>(c, scores, bias), want));
    }
  }
}

TEST(CudaTopExperts, NanScoresSelectDistinctExperts) {
  auto scores = grid({3, 8}, 1);
  scores[0].fill_(NAN);
  scores[1].slice(0, 2, 5).fill_(NAN);
  for (const int64_t groups : {1, 4}) {
    const TopExpertsCase c{3, 8, 4, groups, groups / 2 + groups % 2};
    const auto ids = selected<2>(c, scores, {});
    EXPECT_TRUE(ids.ge(0).all().item<bool>() && ids.lt(8).all().item<bool>());
    for (int64_t t = 0; t < 3; ++t) EXPECT_EQ(std::get<0>(at::_unique(ids[t])).size(0), 4);
  }
}

TEST(CudaTopExperts, WeightsAndGradient) {
  for (const auto& c : all_cases(kTopExpertsCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message() << "E " << c.experts << " K " << c.k);
    const auto scores = normal({c.tokens, c.experts}, 1).sigmoid().to(at::kFloat);
    const auto ids = std::get<1>(scores.topk(c.k, 1)).contiguous();
    const auto dweights = normal({c.tokens, c.k}, 2).to(at::kFloat);
    for (const bool normalize : {false, true}) {
      const ExpertWeightsParams params{.rows = c.tokens,
                                       .experts = c.experts,
                                       .k = c.k,
                                       .scores = scores.const_data_ptr<float>(),
                                       .ids = ids.const_data_ptr<int64_t>(),
                                       .normalize = normalize,
                                       .eps = 0.25f,
                                       .factor = 2.5f};
      at::Tensor weights = at::full({c.tokens, c.k}, NAN), dscores = at::full({c.tokens, c.experts}, NAN);
      launch({weights}, expert_weights_forward, blocks(c.tokens, 128), {128}, params,
             weights.data_ptr<float>());
      launch({dscores}, expert_weights_gradient, blocks(c.tokens, kSelectWarps), {kWarpSize, kSelectWarps},
             params, dweights.const_data_ptr<float>(), dscores.data_ptr<float>());
      const auto wide = scores.to(at::kDouble);
      EXPECT_TRUE(close(weights, ops::expert_weights_reference(wide, ids, normalize, 0.25f, 2.5), kFp32));
      EXPECT_TRUE(close(
          dscores,
          ops::expert_weights_backward_reference(dweights.to(at::kDouble), wide, ids, normalize, 0.25f, 2.5),
          kFp32));
    }
  }
}

}  // namespace top_experts_kernels_test
}  // namespace hero::test
