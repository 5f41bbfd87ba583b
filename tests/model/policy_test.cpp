// SparseRoute: selection, weights, groups, biases, capacity and ties, against hand-computed or brute-force
// results.
#include "model/policy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "oracle/small_models.h"
#include "oracle/sparse.h"

namespace policy_test {

hero::Config policy(int64_t experts, int64_t k) {
  auto c = small::deepseek();
  c.model.num_experts = experts;
  c.model.num_experts_per_tok = k;
  return c;
}

hero::ExpertSelection route(const hero::Config& c, const at::Tensor& logits, const at::Tensor& bias = {},
                            int64_t layer = 1) {
  return hero::sparse_route(logits, logits.softmax(1), bias, c.model, c.router, layer,
                            c.router.capacity_factor);
}

TEST(Policy, WeightsAreNormalizedTopKProbabilities) {
  const auto logits = at::tensor({0.0, 2.0, 1.0, -1.0}, at::kDouble).unsqueeze(0);
  auto c = policy(4, 2);
  c.model.norm_topk_eps = 0.25;
  const auto selection = route(c, logits);
  EXPECT_TRUE(selection.ids.equal(at::tensor({1, 2}, at::kLong).unsqueeze(0)));
  const auto q = logits.softmax(1);
  const double q1 = q[0][1].item<double>(), q2 = q[0][2].item<double>();
  EXPECT_NEAR(selection.weights[0][0].item<double>(), q1 / (q1 + q2 + 0.25), 1e-15);
  EXPECT_NEAR(selection.weights[0][1].item<double>(), q2 / (q1 + q2 + 0.25), 1e-15);
  EXPECT_TRUE(selection.kept.equal(selection.ids));
}

TEST(Policy, UnnormalizedAndScaledWeights) {
  const auto logits = small::normal({6, 8}, 1);
  auto c = policy(8, 3);
  c.model.norm_topk_prob = false;
  c.model.routed_scaling_factor = 2.5;
  const auto selection = route(c, logits);
  EXPECT_LT(small::relative_error(selection.weights, 2.5 * logits.softmax(1).gather(1, selection.ids)),
            1e-15);
}

TEST(Policy, SigmoidScores) {
  const auto logits = small::normal({6, 8}, 2);
  auto c = policy(8, 3);
  c.model.scoring_func = hero::ScoringFunc::kSigmoid;
  const auto selection = route(c, logits);
  EXPECT_TRUE(selection.ids.equal(oracle::topk_indices(logits, 3)));
  const auto scores = logits.sigmoid().gather(1, selection.ids);
  EXPECT_LT(small::relative_error(selection.weights, scores / scores.sum(1, true)), 1e-15);
}

TEST(Policy, BiasAffectsSelectionButNotWeights) {
  const auto logits = small::normal({32, 8}, 3);
  auto c = policy(8, 2);
  auto bias = at::zeros({8}, at::kFloat);
  bias[5] = 10.0;
  const auto free = route(c, logits), moved = route(c, logits, bias);
  EXPECT_TRUE(moved.ids.select(1, 0).eq(5).all().item<bool>());
  EXPECT_FALSE(moved.ids.equal(free.ids));
  const auto q = logits.softmax(1).gather(1, moved.ids);
  EXPECT_LT(small::relative_error(moved.weights, q / q.sum(1, true)), 1e-15);
  EXPECT_TRUE(route(c, logits, at::full({8}, 0.5, at::kFloat)).ids.equal(free.ids));
}

TEST(Policy, OnlyTheBestGroupsAreEligible) {
  // Top-2 group sums: {0.9+0.1, 0.6+0.5, 0.05+0.04, 0.55+0.52} -> groups 1 and 3, without the best expert 0.
  const auto scores = at::tensor({0.9, 0.1, 0.6, 0.5, 0.05, 0.04, 0.55, 0.52}, at::kDouble).unsqueeze(0);
  auto c = policy(8, 3);
  c.model.scoring_func = hero::ScoringFunc::kSigmoid;
  c.model.n_group = 4;
  c.model.topk_group = 2;
  const auto selection = route(c, scores.logit());
  EXPECT_TRUE(selection.ids.equal(at::tensor({2, 6, 7}, at::kLong).unsqueeze(0))) << selection.ids;
}

TEST(Policy, GroupLimitsWithBiasAgainstBruteForce) {
  for (const int64_t groups : {2, 4, 8}) {
    for (const int64_t kept : {int64_t{1}, groups / 2, groups}) {
      auto c = policy(16, 2);
      c.model.n_group = groups;
      c.model.topk_group = kept;
      c.model.scoring_func = hero::ScoringFunc::kSigmoid;
      const auto bias = small::normal({16}, 5).to(at::kFloat);
      oracle::LayerRouting want{.x = {}, .logits = small::normal({64, 16}, 4)};
      oracle::select_experts(c, bias, want);
      const auto selection = route(c, want.logits, bias);
      EXPECT_TRUE(selection.ids.equal(want.ids)) << groups << " groups, " << kept << " kept";
      EXPECT_LT(small::relative_error(selection.weights, want.gates.gather(1, want.ids)), 1e-14);
    }
  }
}

TEST(Policy, TiesSelectKDifferentExpertsWithEqualWeights) {
  const auto selection = route(policy(16, 4), at::zeros({5, 16}, at::kDouble));
  for (int64_t t = 0; t < 5; ++t) EXPECT_EQ(std::get<0>(at::_unique(selection.ids[t])).size(0), 4);
  EXPECT_TRUE(selection.weights.equal(at::full({5, 4}, 0.25, at::kDouble)));
  EXPECT_TRUE(route(policy(16, 4), at::zeros({5, 16}, at::kDouble)).ids.equal(selection.ids));
}

TEST(Policy, AllExpertsChosenGivesTheSoftmax) {
  const auto logits = small::normal({5, 6}, 6);
  const auto selection = route(policy(6, 6), logits);
  const auto dense = at::zeros({5, 6}, at::kDouble).scatter_(1, selection.ids, selection.weights);
  EXPECT_LT(small::relative_error(dense, logits.softmax(1)), 1e-15);
}

TEST(Policy, ForcedBalanceGivesEqualCounts) {
  auto c = policy(8, 2);
  c.router.force_balance = true;
  for (const int64_t layer : {1, 2, 5}) {
    const auto selection = route(c, small::normal({12, 8}, 7), {}, layer);
    EXPECT_TRUE(hero::count_assignments(selection.ids, 8).equal(at::full({8}, 3, at::kLong)));
    EXPECT_FALSE(selection.ids.select(1, 0).equal(selection.ids.select(1, 1)));
  }
}

TEST(Policy, CapacityAgainstBruteForce) {
  for (const auto drop : {hero::DropPolicy::kProbs, hero::DropPolicy::kPosition}) {
    for (const double factor : {0.2, 0.5, 1.0, 1.25, 8.0}) {
      auto c = policy(8, 3);
      c.router.capacity_factor = factor;
      c.router.drop_policy = drop;
      oracle::LayerRouting want{.x = {}, .logits = 2.0 * small::normal({40, 8}, 8)};
      want.logits.select(1, 0).add_(2.0);
      oracle::select_experts(c, {}, want);
      const auto selection = route(c, want.logits);
      EXPECT_TRUE(selection.ids.equal(want.ids));
      const auto gates = at::zeros({40, 8}, at::kDouble).scatter_(1, selection.ids, selection.weights);
      EXPECT_LT(small::relative_error(gates, want.gates), 1e-14) << name_of(drop) << " " << factor;
      EXPECT_TRUE(selection.kept.ge(0).equal(selection.weights.ne(0)));
      const auto kept = selection.kept.ge(0);
      EXPECT_TRUE(selection.kept.masked_select(kept).equal(selection.ids.masked_select(kept)));
      const auto limit = static_cast<int64_t>(std::ceil(factor * 40 * 3 / 8));
      EXPECT_LE(hero::count_assignments(selection.kept, 8).max().item<int64_t>(), limit);
      EXPECT_EQ(factor == 8.0, selection.kept.equal(selection.ids));
    }
  }
}

TEST(Policy, CapacityByHand) {
  // Capacity ceil(0.5 * 4 * 1 / 1) = 2; all four tokens select expert 0.
  const auto ids = at::zeros({4, 1}, at::kLong);
  const auto weights = at::tensor({0.1, 0.4, 0.2, 0.3}, at::kDouble).unsqueeze(1);
  const auto by_probs = hero::drop_beyond_capacity(ids, weights, 1, 0.5, hero::DropPolicy::kProbs).flatten();
  const auto by_position =
      hero::drop_beyond_capacity(ids, weights, 1, 0.5, hero::DropPolicy::kPosition).flatten();
  EXPECT_TRUE(by_probs.equal(at::tensor({-1, 0, -1, 0}, at::kLong))) << by_probs;
  EXPECT_TRUE(by_position.equal(at::tensor({0, 0, -1, -1}, at::kLong))) << by_position;
}

TEST(Policy, EqualWeightsAreDroppedFromTheEnd) {
  const auto kept = hero::drop_beyond_capacity(at::zeros({4, 1}, at::kLong), at::ones({4, 1}, at::kDouble), 1,
                                               0.5, hero::DropPolicy::kProbs);
  EXPECT_TRUE(kept.flatten().equal(at::tensor({0, 0, -1, -1}, at::kLong)));
}

TEST(Policy, DroppedAssignmentsPassNoGradient) {
  auto c = policy(4, 1);
  c.router.capacity_factor = 0.25;
  c.model.norm_topk_prob = false;
  const auto logits =
      at::tensor({3.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0}, at::kDouble).view({2, 4}).set_requires_grad(true);
  const auto selection = route(c, logits);  // capacity 1: expert 0 keeps the second token
  EXPECT_TRUE(selection.kept.flatten().equal(at::tensor({-1, 0}, at::kLong)));
  selection.weights.sum().backward();
  EXPECT_EQ(logits.grad()[0].abs().max().item<double>(), 0.0);
  EXPECT_GT(logits.grad()[1].abs().max().item<double>(), 0.0);
}

TEST(Policy, CountsSkipDroppedAssignments) {
  const auto counts = hero::count_assignments(at::tensor({0, -1, 2, 2, -1, 0}, at::kLong).view({3, 2}), 4);
  EXPECT_TRUE(counts.equal(at::tensor({2, 0, 2, 0}, at::kLong)));
}

}  // namespace policy_test
