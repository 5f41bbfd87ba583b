#include "train/balance_warning.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace hero {
namespace balance_warning_test {

constexpr int64_t kLayers = 3, kExperts = 16;

Config config() {
  Config c;
  c.model.num_experts = kExperts;
  c.model.num_experts_per_tok = 1;
  c.router.balance_loss = 0.001;
  c.router.z_loss = 0;
  return c;
}

const std::string kAdvice =
    "; in a new run, raise router.balance_loss (now 0.001) or router.z_loss (now 0.0)";

at::Tensor even() { return at::full({kLayers, kExperts}, 100.0, at::kDouble); }

// Gives an expert this share of its layer's 1600 assignments; the others have equal parts of the rest.
void give(at::Tensor& assigned, int64_t layer, int64_t expert, double share) {
  assigned[layer].fill_(1600 * (1 - share) / (kExperts - 1));
  assigned[layer][expert] = 1600 * share;
}

using Lines = std::vector<std::string>;

Lines feed(BalanceWarning& warning, const at::Tensor& assigned, int steps) {
  Lines all;
  for (int i = 0; i < steps; ++i) {
    for (const auto& line : warning.add(assigned)) all.push_back(line);
  }
  return all;
}

TEST(BalanceWarning, OverloadedExpertOnceAfterAHundredSteps) {
  BalanceWarning warning(config());
  auto skewed = even();
  give(skewed, 2, 7, 0.41);
  EXPECT_EQ(feed(warning, skewed, 99), Lines());
  EXPECT_EQ(
      feed(warning, skewed, 1),
      Lines{"layer 3, expert 7: 41% of tokens over 100 steps, more than five times its uniform share of "
            "6.25%" +
            kAdvice});
  give(skewed, 0, 1, 0.9);
  EXPECT_EQ(feed(warning, skewed, 300), Lines()) << "once per run";
}

TEST(BalanceWarning, StepsMustBeConsecutive) {
  BalanceWarning warning(config());
  auto skewed = even();
  give(skewed, 1, 0, 0.5);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(feed(warning, skewed, 99), Lines());
    EXPECT_EQ(feed(warning, even(), 1), Lines());
  }
}

TEST(BalanceWarning, FiveTimesTheUniformShareIsNotMore) {
  BalanceWarning warning(config());
  auto skewed = even();
  skewed[1].fill_(11);
  skewed[1][0] = 75;  // of 240
  EXPECT_EQ(feed(warning, skewed, 200), Lines());
  skewed[1][0] = 76;
  EXPECT_EQ(feed(warning, skewed, 200).size(), 1u);
}

TEST(BalanceWarning, NamesTheWorstExpertAndCountsTheOthers) {
  BalanceWarning warning(config());
  auto skewed = even();
  give(skewed, 0, 3, 0.35);
  give(skewed, 1, 5, 0.6);
  give(skewed, 2, 9, 0.4);
  EXPECT_EQ(feed(warning, skewed, 50), Lines());
  give(skewed, 1, 5, 0.8);
  EXPECT_EQ(
      feed(warning, skewed, 50),
      Lines{"layer 2, expert 5: 70% of tokens over 100 steps, more than five times its uniform share of "
            "6.25% (and 2 more experts)" +
            kAdvice});
}

TEST(BalanceWarning, SharesAreOfTokensWithSeveralExpertsPerToken) {
  Config c = config();
  c.model.num_experts_per_tok = 2;
  BalanceWarning warning(c);
  auto skewed = even();
  give(skewed, 0, 3, 0.4);
  EXPECT_EQ(
      feed(warning, skewed, 100),
      Lines{"layer 1, expert 3: 80% of tokens over 100 steps, more than five times its uniform share of "
            "12.5%" +
            kAdvice});
}

TEST(BalanceWarning, IdleExpertsIndependentlyOfOverloadedOnes) {
  BalanceWarning warning(config());
  auto skewed = even();
  skewed[1][15] = 0;
  EXPECT_EQ(feed(warning, skewed, 60), Lines());
  skewed[0][2] = 0;
  EXPECT_EQ(feed(warning, skewed, 40), Lines{"layer 2, expert 15: no tokens over 100 steps" + kAdvice});
  give(skewed, 2, 0, 1);
  const auto lines = feed(warning, skewed, 100);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].substr(0, 26), "layer 3, expert 0: 100% of");
  BalanceWarning both(config());
  const auto pair = feed(both, skewed, 100);
  ASSERT_EQ(pair.size(), 2u);
  EXPECT_EQ(pair[1], "layer 1, expert 2: no tokens over 100 steps (and 16 more experts)" + kAdvice);
}

TEST(BalanceWarning, NamesTheOptionsOfTheModel) {
  Config c = config();
  c.model.model_type = ModelType::kDeepseekV3;
  c.router.bias_update_rate = 0.01;
  c.router.balance = BalanceScope::kNone;
  BalanceWarning warning(c);
  auto skewed = even();
  skewed[0][0] = 0;
  EXPECT_EQ(feed(warning, skewed, 100),
            Lines{"layer 1, expert 0: no tokens over 100 steps; in a new run, set router.balance (now none), "
                  "router.bias_update_rate (now 0.01) or router.z_loss (now 0.0)"});
}

}  // namespace balance_warning_test
}  // namespace hero
