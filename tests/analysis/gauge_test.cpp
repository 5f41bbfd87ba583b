// The two changes of W_R that leave routing probabilities unchanged; centered statistics are invariant too.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "analysis/coupling.h"
#include "analysis/passes.h"
#include "analysis/perturbed_models.h"

namespace gauge_test {

using analyze::kVariants;
using hero::test::TemporaryFolder;

struct Change {
  const char* name;
  bool columns, rows;
};
constexpr Change kChanges[] = {{"columns", true, false}, {"rows", false, true}, {"both", true, true}};

// Adds a random constant to every column of every block, and random constants to the rows of each block that
// sum to zero over a layer's blocks. Returns whether any weight changed.
bool change_gauge(hero::Transformer& model, const Change& change, uint64_t seed) {
  const at::NoGradGuard no_grad;
  const int64_t d = model.config().model.hidden_size, e = model.layout().experts();
  bool changed = false;
  for (int64_t l = 1; l <= model.layout().layers(); ++l) {
    const auto m = static_cast<int64_t>(model.layout().visible(l).size());
    if (m == 0) continue;
    auto& all = model.parameters().all();
    const auto router =
        std::ranges::find(all, analyze::router_name(model.config(), l), &hero::Parameter::name);
    auto blocks_EME = router->values.slice(1, d).view({e, m, e});
    auto rows_EM = small::normal({e, m}, seed++);
    rows_EM -= rows_EM.mean(1, /*keepdim=*/true);
    if (change.columns) blocks_EME += small::normal({1, m, e}, seed++);
    if (change.rows) blocks_EME += rows_EM.unsqueeze(2);
    changed |= change.columns || (change.rows && m > 1);
  }
  model.parameters().update_leaves();
  return changed;
}

struct Analysis {
  Analysis(const hero::Transformer& model, const at::Tensor& tokens)
      : routings(model.forward(tokens.slice(1, 0, -1)).routings),
        effects(hero::history_effects(model, analyze::token_windows(tokens), 2, [](int64_t) {})) {
    const TemporaryFolder folder;
    analyze::save(model, folder.path());
    coupling = hero::coupling(hero::RouterHistory(folder.path(), model.config()));
  }
  std::vector<hero::Routing> routings;
  hero::HistoryEffects effects;
  hero::Coupling coupling;
};

double max_difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

void expect_same_routing(const Analysis& found, const Analysis& before) {
  for (size_t l = 0; l < before.routings.size(); ++l) {
    EXPECT_LT(max_difference(found.routings[l].probs, before.routings[l].probs), 1e-12);
    EXPECT_TRUE(found.routings[l].ids.equal(before.routings[l].ids));
  }
  EXPECT_NEAR(found.effects.utilization.loss, before.effects.utilization.loss, 1e-11);
  for (const auto& [pair, factor, raw, centered] : before.coupling.pairs) {
    const auto use = found.effects.sums.use(pair.layer), expected = before.effects.sums.use(pair.layer);
    EXPECT_NEAR(use.variance_share, expected.variance_share, 1e-11);
    EXPECT_EQ(use.agreement, expected.agreement);
    EXPECT_EQ(use.history_only, expected.history_only);
    EXPECT_NEAR(use.history_only_kl, expected.history_only_kl, 1e-11);
  }
}

void expect_same_centered(const Analysis& found, const Analysis& before) {
  const auto &found_centered = found.coupling.centered, &before_centered = before.coupling.centered;
  EXPECT_LT(max_difference(found_centered.dependency_LL, before_centered.dependency_LL), 1e-12);
  EXPECT_NEAR(found_centered.strong->tau, before_centered.strong->tau, 1e-13);
  for (size_t i = 0; i < before_centered.strong->distances.size(); ++i) {
    // 64 entries per block: tau lies between two entries, and rounding moves none across it.
    EXPECT_EQ(found_centered.strong->distances[i].negative, before_centered.strong->distances[i].negative);
    EXPECT_EQ(found_centered.strong->distances[i].positive, before_centered.strong->distances[i].positive);
  }
  EXPECT_LT(max_difference(found.coupling.expert_bias_LE, before.coupling.expert_bias_LE), 1e-13);
  for (size_t i = 0; i < before.coupling.pairs.size(); ++i) {
    const auto &one = found.coupling.pairs[i].centered, &expected = before.coupling.pairs[i].centered;
    EXPECT_NEAR(one.norm, expected.norm, 1e-12);
    EXPECT_NEAR(one.effective_rank, expected.effective_rank, 1e-10);
  }
  const auto removal = found.effects.sums.removal(hero::Contribution::kCentered);
  const auto expected = before.effects.sums.removal(hero::Contribution::kCentered);
  EXPECT_LT(max_difference(removal.change_LL, expected.change_LL), 1e-15);
  EXPECT_LT(max_difference(removal.kl_LL, expected.kl_LL), 1e-11);
  for (size_t i = 0; i < before.effects.losses.size(); ++i)
    EXPECT_NEAR(found.effects.losses[i].centered_loss, before.effects.losses[i].centered_loss, 1e-11);
}

void expect_different_raw(const Analysis& found, const Analysis& before, bool rows_moved) {
  EXPECT_GT(max_difference(found.coupling.raw.dependency_LL, before.coupling.raw.dependency_LL), 0.1);
  EXPECT_GT(std::abs(found.coupling.raw.strong->tau - before.coupling.raw.strong->tau), 0.01);
  double percent = 0;
  for (size_t i = 0; i < before.coupling.raw.strong->distances.size(); ++i) {
    percent = std::max(percent, std::abs(found.coupling.raw.strong->distances[i].negative -
                                         before.coupling.raw.strong->distances[i].negative));
  }
  EXPECT_GT(percent, 0.1);
  if (!rows_moved) return;
  const auto removal = found.effects.sums.removal(hero::Contribution::kRaw);
  EXPECT_GT(max_difference(removal.kl_LL, before.effects.sums.removal(hero::Contribution::kRaw).kl_LL), 1e-3);
  double loss = 0;
  for (size_t i = 0; i < before.effects.losses.size(); ++i)
    loss = std::max(loss, std::abs(found.effects.losses[i].loss - before.effects.losses[i].loss));
  EXPECT_GT(loss, 1e-6);
}

TEST(Gauge, RandomChangesPreserveRoutingAndCenteredStatistics) {
  const auto tokens = small::tokens(3, 13, 37, 3);
  uint64_t seed = 100;
  for (const auto& variant : kVariants) {
    for (const auto& change : kChanges) {
      for (int repetition = 0; repetition < 3; ++repetition, seed += 100) {
        SCOPED_TRACE(std::string(variant.name) + ", " + change.name + ", seed " + std::to_string(seed));
        hero::Transformer model(analyze::config_of(variant));
        small::perturb(model, 0.1, seed);
        const Analysis before(model, tokens);
        const bool changed = change_gauge(model, change, seed + 50);
        const Analysis found(model, tokens);
        expect_same_routing(found, before);
        expect_same_centered(found, before);
        if (changed) expect_different_raw(found, before, change.rows && variant.window != 1);
      }
    }
  }
}

// Sigmoid scores are not invariant to a shift of all logits, but to moving rows between blocks.
TEST(Gauge, SigmoidScoresAreInvariantToMovedRowsOnly) {
  const auto tokens = small::tokens(3, 13, 37, 3);
  auto config = small::deepseek();
  config.model.scoring_func = hero::ScoringFunc::kSigmoid;
  for (const auto& change : kChanges) {
    SCOPED_TRACE(change.name);
    hero::Transformer model(config);
    small::perturb(model, 0.1, 7);
    const Analysis before(model, tokens);
    ASSERT_TRUE(change_gauge(model, change, 8));
    const Analysis found(model, tokens);
    if (change.columns) {
      EXPECT_GT(std::abs(found.effects.utilization.loss - before.effects.utilization.loss), 1e-4);
    } else {
      expect_same_routing(found, before);
      expect_same_centered(found, before);
    }
  }
}

// Centered blocks and bias give the same probabilities.
TEST(Gauge, CenteredBlocksAndBiasGiveSameRouting) {
  const auto tokens = small::tokens(3, 13, 37, 3);
  for (const auto& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    hero::Transformer model(analyze::config_of(variant));
    small::perturb(model, 0.1, 21);
    const Analysis before(model, tokens);
    const at::NoGradGuard no_grad;
    for (int64_t l = 1; l <= model.layout().layers(); ++l) {
      const auto m = static_cast<int64_t>(model.layout().visible(l).size());
      auto& all = model.parameters().all();
      const auto router =
          std::ranges::find(all, analyze::router_name(model.config(), l), &hero::Parameter::name);
      for (int64_t i = 0; i < m; ++i) {
        auto block = router->values.slice(1, 24 + 8 * i, 32 + 8 * i);
        block.copy_(hero::centered_block(block.clone()));
        EXPECT_LT(block.mean(0).abs().max().item<double>(), 1e-15);
        EXPECT_LT(block.mean(1).abs().max().item<double>(), 1e-15);
        if (i == 0) block.add_(before.coupling.expert_bias_LE[l - 1].unsqueeze(1));
      }
    }
    model.parameters().update_leaves();
    expect_same_routing(Analysis(model, tokens), before);
  }
}

}  // namespace gauge_test
