// The total loss: coefficients, sums over layers, logged values, disabled terms.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "loss/loss.h"
#include "oracle/small_models.h"

namespace total_loss_test {

constexpr double kExact = 1e-12;

double value(const at::Tensor& loss) { return loss.item<double>(); }

struct Forward {
  explicit Forward(const hero::Config& c)
      : model(c), tokens(small::tokens(2, 8, c.model.vocab_size, 1)), out(model.forward(tokens)) {
    targets = small::tokens(1, 16, c.model.vocab_size, 2).view({-1});
    balance = hero::BalanceState::uniform(model.layout().layers(), c.model.num_experts);
  }
  hero::Losses losses() const { return hero::compute_losses(model, out, targets, 8, balance); }

  hero::Transformer model;
  at::Tensor tokens, targets;
  hero::Transformer::Output out;
  hero::BalanceState balance;
};

hero::Config without_terms(hero::Config c) {
  c.router.balance = hero::BalanceScope::kNone;
  return c;
}

TEST(TotalLoss, LanguageModelLossIsTheMeanCrossEntropy) {
  const Forward run(without_terms(small::qwen()));
  const auto logits = run.model.logits(run.out.hidden_TD, 2).view({16, -1});
  double sum = 0;
  for (int64_t t = 0; t < 16; ++t)
    sum -= logits[t].log_softmax(0)[run.targets[t].item<int64_t>()].item<double>() / 16;
  const auto losses = run.losses();
  EXPECT_NEAR(value(losses.lm), sum, kExact);
  EXPECT_EQ(value(losses.total), value(losses.lm));
  EXPECT_EQ(value(losses.balance), 0.0);
  EXPECT_EQ(value(losses.z), 0.0);
  EXPECT_EQ(value(losses.coupling), 0.0);
}

TEST(TotalLoss, BalanceAndZSumOverLayersAndAreLoggedAsMeans) {
  auto c = small::qwen();
  c.router.balance_loss = 0.5;
  c.router.z_loss = 0.25;
  c.router.coupling_loss = 2.0;
  const Forward run(c);
  const auto losses = run.losses();
  double balance = 0, z = 0;
  for (const auto& r : run.out.routings) {
    balance += hero::balance_loss(r.probs, r.ids, hero::BalanceScope::kMicroBatch, 8, {}).item<double>();
    z += hero::z_loss(r.logits).item<double>();
  }
  std::vector<at::Tensor> masses;
  for (const auto& r : run.out.routings) masses.push_back(hero::topk_mass(r.probs, 3));
  const double coupling = hero::coupling_loss(masses, 3).item<double>();
  EXPECT_NEAR(value(losses.balance), balance / 4, kExact);
  EXPECT_NEAR(value(losses.z), z / 4, kExact);
  EXPECT_NEAR(value(losses.coupling), coupling, kExact);
  EXPECT_NEAR(value(losses.total), value(losses.lm) + 0.5 * balance + 0.25 * z + 2.0 * coupling, kExact);
}

TEST(TotalLoss, SigmoidScoresAreNormalizedForTheBalanceLoss) {
  auto c = small::deepseek();
  c.model.scoring_func = hero::ScoringFunc::kSigmoid;
  const Forward run(c);
  double balance = 0;
  for (const auto& r : run.out.routings) {
    const auto scores = r.logits.sigmoid();
    balance += hero::balance_loss(scores / scores.sum(1, true), r.ids, hero::BalanceScope::kMicroBatch, 8, {})
                   .item<double>() /
               4;
  }
  EXPECT_NEAR(value(run.losses().balance), balance, kExact);
  EXPECT_GT(balance, 0.9);
  EXPECT_LT(balance, 2.0);
}

TEST(TotalLoss, GlobalBalanceUsesTheGivenShares) {
  auto c = small::qwen();
  c.router.balance = hero::BalanceScope::kGlobal;
  Forward run(c);
  EXPECT_NEAR(value(run.losses().balance), 1.0, kExact);  // uniform shares: E * sum_e P_e / E
  run.balance.shares_LE = small::normal({4, 8}, 3).softmax(1);
  double want = 0;
  for (const auto& r : run.out.routings)
    want += 8 * (run.balance.shares_LE[r.layer - 1] * r.probs.mean(0)).sum().item<double>() / 4;
  EXPECT_NEAR(value(run.losses().balance), want, kExact);
}

// Directional derivative over all parameters, by central differences. Assignments are constants of the
// balance loss, so the step is small enough not to change any.
TEST(TotalLoss, GradientByFiniteDifferences) {
  for (const auto scope :
       {hero::BalanceScope::kMicroBatch, hero::BalanceScope::kSequence, hero::BalanceScope::kGlobal}) {
    auto c = small::deepseek();
    c.router.balance = scope;
    c.router.balance_loss = 0.5;
    c.router.z_loss = 0.1;
    // History and rho are detached but change the loss; a baseline has neither.
    c.router.kind = "baseline";
    c.router.coupling_loss = 0.3;
    Forward run(c);
    run.losses().total.backward();
    double slope = 0;
    std::vector<at::Tensor> direction;
    auto& all = run.model.parameters().all();
    for (size_t i = 0; i < all.size(); ++i) {
      direction.push_back(small::normal(all[i].values.sizes(), 40 + i));
      if (all[i].leaf.grad().defined()) slope += (all[i].leaf.grad() * direction[i]).sum().item<double>();
    }
    at::NoGradGuard no_grad;
    const auto loss_at = [&](double step) {
      for (size_t i = 0; i < all.size(); ++i) all[i].values.add_(direction[i], step);
      run.out = run.model.forward(run.tokens);
      const double loss = run.losses().total.item<double>();
      for (size_t i = 0; i < all.size(); ++i) all[i].values.add_(direction[i], -step);
      return loss;
    };
    constexpr double h = 1e-6;
    EXPECT_NEAR((loss_at(h) - loss_at(-h)) / (2 * h), slope, 1e-6 * std::abs(slope)) << name_of(scope);
  }
}

}  // namespace total_loss_test
