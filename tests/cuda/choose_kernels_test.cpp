// The sparse choice against its plain forms in fp64.
#include "cuda/run.h"
#include "ops/cases.h"
#include "ops/cuda/kernels/choose.cuh"
#include "ops/plain.h"

namespace hero::test {
namespace {

using namespace ops::cuda;

// On a grid, so that sums are exact and many scores are equal.
at::Tensor grid(at::IntArrayRef shape, uint64_t seed) {
  return integers(-100, 100, shape, seed).to(at::kFloat) / 64;
}

template <int parts>
at::Tensor chosen(const ChooseCase& c, const at::Tensor& scores, const at::Tensor& bias) {
  at::Tensor ids = at::full({c.tokens, c.k}, -1, at::kLong);
  const ChooseWork work{.rows = c.tokens,
                        .experts = c.experts,
                        .k = c.k,
                        .scores = scores.const_data_ptr<float>(),
                        .bias = c.biased ? bias.const_data_ptr<float>() : nullptr,
                        .groups = c.groups,
                        .kept_groups = c.kept_groups,
                        .ids = ids.data_ptr<int64_t>()};
  launch({ids}, choose_experts<parts>, blocks(c.tokens, kChooseWarps), {kLanes, kChooseWarps}, work);
  return ids;
}

TEST(CudaChoose, Values) {
  for (const auto& c : kChooseCases) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message() << "E " << c.experts << " K " << c.k << " groups " << c.groups);
    const auto scores = grid({c.tokens, c.experts}, 1), bias = grid({c.experts}, 2);
    const auto want = ops::top_experts_plain(scores.to(at::kDouble),
                                             c.biased ? std::optional(bias.to(at::kDouble)) : std::nullopt,
                                             c.k, c.groups, c.kept_groups);
    EXPECT_TRUE(same(chosen<32>(c, scores, bias), want));
    if (c.experts <= 2 * kLanes) {
      EXPECT_TRUE(same(chosen<2>(c, scores, bias), want));
    }
  }
}

TEST(CudaChoose, WhatIsNoNumberChoosesDifferentExperts) {
  auto scores = grid({3, 8}, 1);
  scores[0].fill_(NAN);
  scores[1].slice(0, 2, 5).fill_(NAN);
  for (const int64_t groups : {1, 4}) {
    const ChooseCase c{3, 8, 4, groups, groups / 2 + groups % 2};
    const auto ids = chosen<2>(c, scores, {});
    EXPECT_TRUE(ids.ge(0).all().item<bool>() && ids.lt(8).all().item<bool>());
    for (int64_t t = 0; t < 3; ++t) EXPECT_EQ(std::get<0>(at::_unique(ids[t])).size(0), 4);
  }
}

TEST(CudaChoose, WeightsAndTheirGradient) {
  for (const auto& c : kChooseCases) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message() << "E " << c.experts << " K " << c.k);
    const auto scores = normal({c.tokens, c.experts}, 1).sigmoid().to(at::kFloat);
    const auto ids = std::get<1>(scores.topk(c.k, 1)).contiguous();
    const auto dweights = normal({c.tokens, c.k}, 2).to(at::kFloat);
    for (const bool normalise : {false, true}) {
      const WeightsWork work{.rows = c.tokens,
                             .experts = c.experts,
                             .k = c.k,
                             .scores = scores.const_data_ptr<float>(),
                             .ids = ids.const_data_ptr<int64_t>(),
                             .normalise = normalise,
                             .eps = 0.25f,
                             .factor = 2.5f};
      at::Tensor weights = at::full({c.tokens, c.k}, NAN), dscores = at::full({c.tokens, c.experts}, NAN);
      launch({weights}, expert_weights_forward, blocks(c.tokens, 128), {128}, work,
             weights.data_ptr<float>());
      launch({dscores}, expert_weights_gradient, blocks(c.tokens, kChooseWarps), {kLanes, kChooseWarps}, work,
             dweights.const_data_ptr<float>(), dscores.data_ptr<float>());
      const auto wide = scores.to(at::kDouble);
      EXPECT_TRUE(close(weights, ops::expert_weights_plain(wide, ids, normalise, 0.25f, 2.5), kFp32));
      EXPECT_TRUE(close(
          dscores,
          ops::expert_weights_backward_plain(dweights.to(at::kDouble), wide, ids, normalise, 0.25f, 2.5),
          kFp32));
    }
  }
}

}  // namespace
}  // namespace hero::test
