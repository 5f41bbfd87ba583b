// Top-k routing: selection against a full sort, weights against the expression.
#include <algorithm>
#include <numeric>

#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/ops.h"
#include "ops/random_cases.h"
#include "ops/reference.h"

namespace hero::test {
namespace top_experts_test {

using TopExpertsTest = DeviceTest;
HERO_ON_DEVICES(TopExpertsTest);

std::string name(const TopExpertsCase& c) {
  return "T " + std::to_string(c.tokens) + " E " + std::to_string(c.experts) + " K " + std::to_string(c.k) +
         ", " + std::to_string(c.kept_groups) + " of " + std::to_string(c.groups) + " groups" +
         (c.biased ? ", biased" : "");
}

// Grid values: sums are exact in every type and there are many ties.
at::Tensor grid(at::IntArrayRef shape, uint64_t seed) {
  return integers(-100, 100, shape, seed).to(at::kDouble) / 64;
}

// Indices in descending order of value; ties go to the lower index.
std::vector<int64_t> order_of(const std::vector<double>& values) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](int64_t a, int64_t b) {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  });
  return order;
}

at::Tensor expected_ids(const TopExpertsCase& c, const at::Tensor& eligible) {
  const int64_t per_group = c.experts / c.groups;
  auto ids = at::empty({c.tokens, c.k}, at::kLong);
  for (int64_t t = 0; t < c.tokens; ++t) {
    const auto* z = eligible.const_data_ptr<double>() + t * c.experts;
    std::vector<double> sums;
    for (int64_t g = 0; g < c.groups; ++g) {
      std::vector<double> own(z + g * per_group, z + (g + 1) * per_group);
      std::ranges::sort(own, std::greater());
      sums.push_back(own[0] + (per_group > 1 ? own[1] : 0));
    }
    auto best = order_of(sums);
    best.resize(c.kept_groups);
    int64_t place = 0;
    for (const int64_t e : order_of({z, z + c.experts})) {
      if (place == c.k) break;
      if (std::ranges::find(best, e / per_group) == best.end()) continue;
      ids[t][place++] = e;
    }
  }
  return ids;
}

TEST_P(TopExpertsTest, Values) {
  const auto wide = type() == at::kDouble ? at::kDouble : at::kFloat;
  for (const auto& c : all_cases(kTopExpertsCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(name(c));
    const auto scores = grid({c.tokens, c.experts}, 1), bias = grid({c.experts}, 2);
    const auto cast = [&](const at::Tensor& t) { return t.to(wide).to(device()); };
    const auto got =
        ops::top_experts(cast(scores), c.biased ? cast(bias) : at::Tensor(), c.k, c.groups, c.kept_groups);
    const auto want = expected_ids(c, c.biased ? scores + bias : scores);
    EXPECT_TRUE(same(got.cpu(), want));
    EXPECT_TRUE(same(ops::top_experts_reference(scores, c.biased ? std::optional(bias) : std::nullopt, c.k,
                                                c.groups, c.kept_groups),
                     want));
  }
}

TEST_P(TopExpertsTest, ValuesAndGradientsOfWeights) {
  for (const auto& c : all_cases(kTopExpertsCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(name(c));
    const auto scores = normal({c.tokens, c.experts}, 1).sigmoid();
    const auto ids = std::get<1>(scores.topk(c.k, 1));
    for (const bool normalize : {false, true}) {
      const auto weights = [&](const std::vector<at::Tensor>& in) {
        return std::vector{ops::expert_weights(in[0], in[1], normalize, 0.25, 2.5)};
      };
      const auto want = [&](const std::vector<at::Tensor>& in) {
        const auto s = (in[0].unsqueeze(1) * at::one_hot(in[1], c.experts)).sum(2);
        return std::vector{2.5 * (normalize ? s / (s.sum(1, true) + 0.25) : s)};
      };
      check(weights, want, {{scores, Role::kAccumulate}, {ids, Role::kFixed}}, {kFp32}, {kFp32});
    }
  }
}

// With one expert per token, each weight is exactly `factor`: rounding errors would affect the ranking of
// assignments.
TEST_P(TopExpertsTest, SingleExpertsHaveEqualWeights) {
  const auto wide = type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto scores = normal({1000, 8}, 1).softmax(1).to(wide).to(device());
  const auto ids = std::get<1>(scores.topk(1, 1));
  EXPECT_TRUE(ops::expert_weights(scores, ids, true, 1e-20, 2.5).eq(2.5).all().item<bool>());
}

TEST(TopExperts, GradientsMatchFiniteDifferences) {
  const auto weights = [](const std::vector<at::Tensor>& in) {
    return std::vector{ops::expert_weights(in[0], in[1], true, 0.25, 2.5)};
  };
  check_finite_differences(weights, {{normal({3, 5}, 1).sigmoid(), Role::kAccumulate},
                                     {at::tensor({0, 4, 2, 1, 3, 0}, at::kLong).view({3, 2}), Role::kFixed}});
}

// NaN must reach the loss instead of causing an invalid index.
TEST_P(TopExpertsTest, NanScoresSelectDistinctExperts) {
  const auto wide = type() == at::kDouble ? at::kDouble : at::kFloat;
  auto scores = grid({3, 8}, 1);
  scores[0].fill_(NAN);
  scores[1].slice(0, 2, 5).fill_(NAN);
  for (const int64_t groups : {1, 4}) {
    const auto ids =
        ops::top_experts(scores.to(wide).to(device()), {}, 4, groups, groups / 2 + groups % 2).cpu();
    EXPECT_TRUE(ids.ge(0).all().item<bool>() && ids.lt(8).all().item<bool>());
    for (int64_t t = 0; t < 3; ++t) EXPECT_EQ(std::get<0>(at::_unique(ids[t])).size(0), 4);
  }
}

TEST(TopExperts, RejectsInvalidArguments) {
  const auto scores = at::zeros({2, 8});
  EXPECT_EQ(
      error_of([&] { ops::top_experts(scores, {}, 5, 4, 2); }),
      "top_experts: expected scores [T, E], groups dividing E, and 1 to E / groups * kept_groups experts per "
      "token, got [2, 8], groups = 4, kept_groups = 2, k = 5");
  EXPECT_EQ(error_of([&] { ops::top_experts(scores, at::zeros({4}), 1, 1, 1); }),
            "top_experts: the bias must be [E] = [8], got [4]");
  EXPECT_EQ(error_of([&] { ops::expert_weights(scores, at::zeros({3, 1}, at::kLong), true, 0, 1); }),
            "expert_weights: expected scores [T, E] and int64 ids [T, K], got [2, 8] and Long [3, 1]");
  EXPECT_EQ(error_of([&] { ops::expert_weights(scores, at::full({2, 1}, 8, at::kLong), true, 0, 1); }),
            "expert_weights: ids must lie in [0, 8), got 8");
}

}  // namespace top_experts_test
}  // namespace hero::test
