// Forward passes over token windows, against the oracle.
#include "analysis/passes.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "analysis/perturbed_models.h"
#include "inference/logits.h"
#include "io/error.h"

namespace passes_test {

using analyze::kVariants;

constexpr int64_t kWindows = 3, kLength = 12;

at::Tensor example_tokens(uint64_t seed = 3) { return small::tokens(kWindows, kLength + 1, 37, seed); }

// Of the 36 positions, the last two have no target.
constexpr int64_t kValid = kWindows * kLength - 2;

double oracle_loss(const hero::Config& config, const oracle::Weights& weights, const at::Tensor& tokens_WS) {
  const at::NoGradGuard no_grad;
  const auto logits = oracle::forward(config, weights, tokens_WS.slice(1, 0, kLength)).logits.view({-1, 37});
  const auto targets = tokens_WS.slice(1, 1).reshape({-1, 1});
  return -logits.log_softmax(1).gather(1, targets).slice(0, 0, kValid).mean().item<double>();
}

struct Example {
  explicit Example(const hero::Config& config) : model(config), tokens(example_tokens()) {
    small::perturb(model, 0.1, 11);
    weights = oracle::copy_weights(model.parameters());
  }
  hero::HistoryEffects effects(int64_t batch) const {
    return hero::history_effects(model, analyze::token_windows(tokens), batch, [](int64_t) {});
  }

  hero::Transformer model;
  at::Tensor tokens;
  oracle::Weights weights;
};

TEST(Passes, LossSharesAndPeakMatchOracle) {
  const Example example(analyze::config_of(kVariants[1]));
  const auto& config = example.model.config();
  const at::NoGradGuard no_grad;
  const auto result = oracle::forward(config, example.weights, example.tokens.slice(1, 0, kLength));
  auto want = at::zeros({5, 8}, at::kDouble);
  for (int64_t l = 1; l <= 5; ++l)
    want[l - 1] = result.layers[l - 1].chosen.slice(0, 0, kValid).to(at::kDouble).mean(0);
  const double loss = oracle_loss(config, example.weights, example.tokens);
  for (const int64_t batch : {1, 2, 8}) {
    const auto effects = example.effects(batch);
    const auto& found = effects.utilization;
    EXPECT_EQ(found.tokens, kValid);
    EXPECT_NEAR(found.loss, loss, 1e-10);
    EXPECT_LT((found.shares_LE - want).abs().max().item<double>(), 1e-15);
    EXPECT_NEAR(found.shares_LE.sum().item<double>(), 5 * 3, 1e-12);
    EXPECT_EQ(effects.sums.tokens(), kValid);
    const auto separate =
        hero::utilization(example.model, analyze::token_windows(example.tokens), batch, [](int64_t) {});
    EXPECT_EQ(separate.loss, found.loss);
    EXPECT_TRUE(separate.shares_LE.equal(found.shares_LE));
  }
  const auto highest = hero::peak(want);
  EXPECT_EQ(highest.share, want.max().item<double>());
  EXPECT_EQ(want[highest.layer - 1][highest.expert].item<double>(), highest.share);
}

TEST(Passes, SharesMatchPrintedRouting) {
  const Example example(small::qwen());
  std::vector<std::vector<int64_t>> lists;
  for (int64_t w = 0; w < kWindows; ++w) {
    const auto row = example.tokens[w].slice(0, 0, w + 1 == kWindows ? kLength - 2 : kLength).contiguous();
    lists.emplace_back(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel());
  }
  auto want = at::zeros({4, 8}, at::kDouble);
  for (const auto& [name, ids] : hero::model_logits(example.model, lists, /*routing=*/true)) {
    if (!name.starts_with("topk_ids.")) continue;
    auto row = want[std::stoll(name.substr(name.rfind('.') + 1)) - 1];
    for (int64_t i = 0; i < ids.numel(); ++i) row[ids.flatten()[i].item<int64_t>()] += 1;
  }
  EXPECT_TRUE(example.effects(2).utilization.shares_LE.equal(want / static_cast<double>(kValid)));
}

// With W_R^(l,p) zeroed, or its centered part subtracted, in the oracle's weights; rho from the full history.
TEST(Passes, LossWithoutPredecessorMatchesChangedColumns) {
  for (const auto& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    const Example example(analyze::config_of(variant));
    const auto& config = example.model.config();
    const auto before = oracle::copy_weights(example.model.parameters());
    const auto effects = example.effects(2);
    const auto stages = oracle::stages(5, variant.stages);
    std::map<int64_t, double> want, want_centered;
    for (int64_t p = 1; p <= 5; ++p) {
      auto zeroed = example.weights, constant = example.weights;
      bool seen_by_any = false;
      for (int64_t l = p + 1; l <= 5; ++l) {
        const auto seen = oracle::visible(l, config.router, stages);
        for (size_t m = 0; m < seen.size(); ++m) {
          if (seen[m] != p) continue;
          const auto name = analyze::router_name(config, l);
          const int64_t first = 24 + static_cast<int64_t>(m) * 8;
          for (auto* weights : {&zeroed, &constant}) {
            auto& w = weights->at(name);
            w = w.detach().clone();
            auto block = w.slice(1, first, first + 8);
            const auto centered = block - block.mean(0, true) - block.mean(1, true) + block.mean();
            block.sub_(weights == &zeroed ? block.clone() : centered);
          }
          seen_by_any = true;
        }
      }
      if (!seen_by_any) continue;
      want[p] = oracle_loss(config, zeroed, example.tokens);
      want_centered[p] = oracle_loss(config, constant, example.tokens);
    }
    ASSERT_EQ(effects.losses.size(), want.size());
    double largest = 0, largest_gap = 0;
    for (const auto& [p, loss, centered_loss] : effects.losses) {
      ASSERT_TRUE(want.count(p));
      EXPECT_NEAR(loss, want[p], 1e-10) << "without " << p;
      EXPECT_NEAR(centered_loss, want_centered[p], 1e-10) << "without " << p;
      largest = std::max(largest, std::abs(loss - effects.utilization.loss));
      largest_gap = std::max(largest_gap, std::abs(loss - centered_loss));
    }
    EXPECT_GT(largest_gap, 1e-6);
    EXPECT_GT(largest, 1e-5);
    for (const auto& [name, tensor] : oracle::copy_weights(example.model.parameters()))
      EXPECT_TRUE(tensor.equal(before.at(name))) << name;
  }
}

// Passes without p start after layer p, also with documents.
TEST(Passes, LossWithoutPredecessorSeparatesDocuments) {
  const auto columns = at::arange(kLength + 1), fifth = columns.ge(5).to(at::kLong) * 5;
  const auto starts = at::stack({at::zeros({kLength + 1}, at::kLong), fifth, columns});
  for (const bool mask : {false, true}) {
    auto config = analyze::config_of(kVariants[0]);
    config.train.document_mask = mask;
    config.train.document_positions = true;
    const Example example(config);
    const auto windows = analyze::token_windows(example.tokens, starts);
    const auto loss = [&] { return hero::utilization(example.model, windows, 2, [](int64_t) {}).loss; };
    const auto effects = hero::history_effects(example.model, windows, 2, [](int64_t) {});
    EXPECT_EQ(effects.utilization.loss, loss());
    EXPECT_GT(std::abs(effects.utilization.loss - example.effects(2).utilization.loss), 1e-4);
    ASSERT_EQ(effects.losses.size(), 4u);
    for (const auto& without : effects.losses) {
      const hero::PredecessorAblation removed(example.model, without.predecessor, hero::Contribution::kRaw);
      EXPECT_NEAR(without.loss, loss(), 1e-12) << mask << ", without " << without.predecessor;
    }
  }
}

TEST(Passes, PathsOfTheFirstTokens) {
  auto config = small::deepseek();
  config.model.scoring_func = hero::ScoringFunc::kSigmoid;  // its expert bias changes the selection order
  const Example example(config);
  const auto paths = example.effects(2).paths;
  ASSERT_EQ(paths.ids.size(), static_cast<size_t>(kLength));
  for (int64_t t = 0; t < kLength; ++t) EXPECT_EQ(paths.ids[t], example.tokens[0][t].item<int64_t>());
  const at::NoGradGuard no_grad;
  const auto result =
      oracle::forward(config, example.weights, example.tokens.slice(0, 0, 1).slice(1, 0, kLength));
  ASSERT_EQ(paths.experts.size(), 4u);
  for (size_t l = 0; l < 4; ++l) {
    const auto gates = result.layers[l].gates, best = oracle::topk_indices(gates, 3);
    EXPECT_TRUE(paths.experts[l].equal(best)) << l + 1;
    EXPECT_LT(small::relative_error(paths.weights[l], gates.gather(1, best)), 1e-6) << l + 1;
  }
}

TEST(Passes, CountsItsWindows) {
  const Example example(analyze::config_of(kVariants[1]));  // layers 1, 2 and 4 are visible
  EXPECT_EQ(hero::predecessors(example.model.layout()), (std::vector<int64_t>{1, 2, 4}));
  std::vector<int64_t> steps;
  hero::history_effects(example.model, analyze::token_windows(example.tokens), 2,
                        [&](int64_t windows) { steps.push_back(windows); });
  EXPECT_EQ(hero::history_passes(example.model.layout()), 7);
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 4, 6, 8, 10, 12, 14, 15, 16, 17, 18, 19, 20, 21}));
}

TEST(Passes, NonFiniteLoss) {
  Example example(small::qwen());
  for (auto& p : example.model.parameters().all()) {
    if (p.name == "lm_head.weight") p.values.fill_(std::nan(""));
  }
  EXPECT_EQ(hero::test::error_of<hero::RunError>([&] { example.effects(2); }),
            "the model's loss on the data is not finite");
}

TEST(RankCorrelation, KnownOrders) {
  EXPECT_DOUBLE_EQ(*hero::rank_correlation({1, 2, 3, 4}, {10, 20, 30, 400}), 1);
  EXPECT_DOUBLE_EQ(*hero::rank_correlation({1, 2, 3, 4}, {4, 3, 2, -1}), -1);
  // 1 - 6 sum d^2 / (n (n^2 - 1)) with d = 1, 1, 0, 0, 0.
  EXPECT_DOUBLE_EQ(*hero::rank_correlation({1, 2, 3, 4, 5}, {2, 1, 3, 4, 5}), 0.9);
  // Ranks 0.5, 0.5, 2, 3 against 0, 1, 2, 3: Pearson's correlation 4.5 / sqrt(4.5 * 5).
  EXPECT_DOUBLE_EQ(*hero::rank_correlation({7, 7, 8, 9}, {1, 2, 3, 4}), 4.5 / std::sqrt(22.5));
  EXPECT_FALSE(hero::rank_correlation({1, 2}, {1, 2}));
  EXPECT_FALSE(hero::rank_correlation({5, 5, 5}, {1, 2, 3}));
}

}  // namespace passes_test
