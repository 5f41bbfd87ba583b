// Each loss term against its formula, and its gradient against central differences (fp64).
#include "loss/loss.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "oracle/small_models.h"

namespace loss_test {

using hero::BalanceScope;

constexpr double kExact = 1e-13;

at::Tensor ids_of(const at::Tensor& scores, int64_t k) { return std::get<1>(scores.topk(k, -1)); }

// Largest difference between the gradient of `loss` and central differences, relative to the largest element.
template <typename Loss>
double gradient_error(const at::Tensor& at_point, const Loss& loss) {
  const auto x = at_point.clone().set_requires_grad(true);
  const auto gradient = torch::autograd::grad({loss(x)}, {x})[0];
  at::NoGradGuard no_grad;
  constexpr double h = 1e-5;
  auto numeric = at::empty_like(at_point);
  for (int64_t i = 0; i < at_point.numel(); ++i) {
    const auto moved = [&](double by) {
      auto y = at_point.clone();
      y.view({-1})[i] += by;
      return loss(y).template item<double>();
    };
    numeric.view({-1})[i] = (moved(h) - moved(-h)) / (2 * h);
  }
  return small::relative_error(gradient, numeric);
}

TEST(BalanceLoss, IsOneForUniformScoresAndAssignments) {
  const int64_t tokens = 16, experts = 8, k = 2;
  const auto scores = at::full({tokens, experts}, 1.0 / experts, at::kDouble);
  const auto ids = (at::arange(tokens * k, at::kLong)).remainder(experts).view({tokens, k});
  const auto shares = at::full({experts}, 1.0 / experts, at::kDouble);
  for (const auto scope : {BalanceScope::kMicroBatch, BalanceScope::kSequence, BalanceScope::kGlobal}) {
    EXPECT_NEAR(hero::balance_loss(scores, ids, scope, 8, shares).item<double>(), 1.0, kExact)
        << name_of(scope);
  }
}

TEST(BalanceLoss, IsEIfOneExpertReceivesAllTokens) {
  const auto scores = at::zeros({6, 8}, at::kDouble);
  scores.select(1, 3).fill_(1);
  for (const auto scope : {BalanceScope::kMicroBatch, BalanceScope::kSequence}) {
    EXPECT_NEAR(hero::balance_loss(scores, at::full({6, 1}, 3, at::kLong), scope, 3, {}).item<double>(), 8.0,
                kExact);
  }
}

TEST(BalanceLoss, ByHand) {
  // f = (2, 1, 1)/4, P = (0.45, 0.25, 0.3): 3 * (0.225 + 0.0625 + 0.075)
  const auto scores = at::tensor({0.6, 0.3, 0.1, 0.3, 0.2, 0.5}, at::kDouble).view({2, 3});
  const auto ids = at::tensor({0, 1, 2, 0}, at::kLong).view({2, 2});
  EXPECT_NEAR(hero::balance_loss(scores, ids, BalanceScope::kMicroBatch, 1, {}).item<double>(), 3 * 0.3625,
              kExact);
  // Each token its own sequence: f = (1, 1, 0)/2 and (1, 0, 1)/2; 3 * mean(0.45, 0.4)
  EXPECT_NEAR(hero::balance_loss(scores, ids, BalanceScope::kSequence, 1, {}).item<double>(), 3 * 0.425,
              kExact);
  const auto shares = at::tensor({0.5, 0.1, 0.4}, at::kDouble);
  EXPECT_NEAR(hero::balance_loss(scores, ids, BalanceScope::kGlobal, 1, shares).item<double>(),
              3 * (0.225 + 0.025 + 0.12), kExact);
}

TEST(BalanceLoss, SequenceScopeIsTheMeanOfTheSequences) {
  const auto scores = small::normal({24, 8}, 1).softmax(1);
  const auto ids = ids_of(scores, 3);
  double mean = 0;
  for (int64_t s = 0; s < 3; ++s) {
    mean += hero::balance_loss(scores.slice(0, 8 * s, 8 * s + 8), ids.slice(0, 8 * s, 8 * s + 8),
                               BalanceScope::kMicroBatch, 8, {})
                .item<double>() /
            3;
  }
  EXPECT_NEAR(hero::balance_loss(scores, ids, BalanceScope::kSequence, 8, {}).item<double>(), mean, kExact);
  EXPECT_NEAR(hero::balance_loss(scores, ids, BalanceScope::kSequence, 24, {}).item<double>(),
              hero::balance_loss(scores, ids, BalanceScope::kMicroBatch, 24, {}).item<double>(), kExact);
}

TEST(BalanceLoss, GlobalScopeWithThisBatchsSharesEqualsMicroBatchScope) {
  const auto scores = small::normal({24, 8}, 2).softmax(1);
  const auto ids = ids_of(scores, 3);
  const auto shares = at::bincount(ids.flatten(), {}, 8).to(at::kDouble) / 72;
  EXPECT_NEAR(hero::balance_loss(scores, ids, BalanceScope::kGlobal, 8, shares).item<double>(),
              hero::balance_loss(scores, ids, BalanceScope::kMicroBatch, 8, {}).item<double>(), kExact);
}

TEST(BalanceLoss, Gradient) {
  const auto logits = small::normal({12, 5}, 3);
  const auto ids = ids_of(logits, 2);
  const auto shares = small::normal({5}, 4).softmax(0);
  for (const auto scope : {BalanceScope::kMicroBatch, BalanceScope::kSequence, BalanceScope::kGlobal}) {
    const auto loss = [&](const at::Tensor& z) {
      return hero::balance_loss(z.softmax(1), ids, scope, 4, shares);
    };
    EXPECT_LT(gradient_error(logits, loss), 1e-8) << name_of(scope);
  }
}

TEST(BalanceLoss, UniformStateHasSharesThatSumToOne) {
  const auto state = hero::BalanceState::uniform(3, 8);
  EXPECT_EQ(state.shares_LE.sizes(), at::IntArrayRef({3, 8}));
  EXPECT_TRUE(state.shares_LE.eq(0.125).all().item<bool>());
}

TEST(ZLoss, ByHandAndGradient) {
  const auto logits = at::tensor({0.0, 0.0, std::log(3.0), 1.0, 1.0, 1.0}, at::kDouble).view({2, 3});
  const double first = std::log(5.0), second = 1 + std::log(3.0);
  EXPECT_NEAR(hero::z_loss(logits).item<double>(), (first * first + second * second) / 2, kExact);
  EXPECT_LT(gradient_error(small::normal({7, 5}, 5), [](const at::Tensor& z) { return hero::z_loss(z); }),
            1e-8);
  EXPECT_TRUE(std::isfinite(hero::z_loss(at::full({2, 4}, 500.0, at::kFloat)).item<double>()));
}

std::vector<at::Tensor> masses(const std::vector<at::Tensor>& probs, int64_t k) {
  std::vector<at::Tensor> list;
  for (const auto& p : probs) list.push_back(hero::topk_mass(p, k));
  return list;
}

TEST(CouplingLoss, ByHand) {
  const auto row = [](std::vector<double> values) { return at::tensor(values, at::kDouble).view({2, 3}); };
  // Top-2 masses: (0.9, 0.8), (0.7, 1.0), (0.8, 0.9)
  const std::vector<at::Tensor> probs = {row({0.6, 0.3, 0.1, 0.2, 0.5, 0.3}),
                                         row({0.35, 0.3, 0.35, 0, 0.5, 0.5}),
                                         row({0.2, 0.4, 0.4, 0.1, 0.1, 0.8})};
  const auto two = masses(probs, 2);
  const double pair_1 = (0.9 * 0.7 + 0.8 * 1.0) / 2, pair_2 = (0.7 * 0.8 + 1.0 * 0.9) / 2;
  EXPECT_NEAR(hero::coupling_loss(two, 2).item<double>(), -(pair_1 + pair_2) / 2, kExact);
  EXPECT_NEAR(hero::coupling_loss({two[1], two[2]}, 2).item<double>(), -pair_2 / 2, kExact);
  EXPECT_FALSE(hero::coupling_loss({two[0]}, 2).defined());
  EXPECT_NEAR(hero::coupling_loss(masses(probs, 3), 2).item<double>(), -1.0, kExact);
}

TEST(CouplingLoss, GradientFlowsIntoBothLayers) {
  const auto logits = small::normal({3, 6, 5}, 6);
  const auto loss = [](const at::Tensor& z) {
    return hero::coupling_loss(masses({z[0].softmax(1), z[1].softmax(1), z[2].softmax(1)}, 2), 2);
  };
  EXPECT_LT(gradient_error(logits, loss), 1e-8);
  const auto x = logits.clone().set_requires_grad(true);
  const auto gradient = torch::autograd::grad({loss(x)}, {x})[0];
  for (int64_t l = 0; l < 3; ++l) EXPECT_GT(gradient[l].abs().max().item<double>(), 1e-4);
}

}  // namespace loss_test
