// The two changes of W_R that no routing probability shows: what is centered does not show them either.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "analysis/coupling.h"
#include "analysis/passes.h"
#include "analysis/trained.h"

namespace {

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
  model.parameters().publish();
  return changed;
}

struct Findings {
  Findings(const hero::Transformer& model, const at::Tensor& tokens)
      : routings(model.forward(tokens.slice(1, 0, -1)).routings),
        effects(hero::history_effects(model, analyze::passages(tokens), 2, [](int64_t) {})) {
    const TemporaryFolder folder;
    analyze::save(model, folder.path());
    coupling = hero::coupling(hero::RouterHistory(folder.path(), model.config()));
  }
  std::vector<hero::Routing> routings;
  hero::HistoryEffects effects;
  hero::Coupling coupling;
};

double off(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

void expect_same_routing(const Findings& found, const Findings& before) {
  for (size_t l = 0; l < before.routings.size(); ++l) {
    EXPECT_LT(off(found.routings[l].probs, before.routings[l].probs), 1e-12);
    EXPECT_TRUE(found.routings[l].ids.equal(before.routings[l].ids));
  }
  EXPECT_NEAR(found.effects.utilisation.loss, before.effects.utilisation.loss, 1e-11);
  for (const auto& [pair, factor, raw, centered] : before.coupling.pairs) {
    const auto use = found.effects.sums.use(pair.layer), expected = before.effects.sums.use(pair.layer);
    EXPECT_NEAR(use.variance_share, expected.variance_share, 1e-11);
    EXPECT_EQ(use.agreement, expected.agreement);
    EXPECT_EQ(use.alone, expected.alone);
    EXPECT_NEAR(use.alone_kl, expected.alone_kl, 1e-11);
  }
}

void expect_same_centered(const Findings& found, const Findings& before) {
  const auto &own = found.coupling.centered, &old = before.coupling.centered;
  EXPECT_LT(off(own.dependency_LL, old.dependency_LL), 1e-12);
  EXPECT_NEAR(own.strong->tau, old.strong->tau, 1e-13);
  for (size_t i = 0; i < old.strong->distances.size(); ++i) {
    // 64 entries a block: tau lies between two of them, and rounding moves none across.
    EXPECT_EQ(own.strong->distances[i].negative, old.strong->distances[i].negative);
    EXPECT_EQ(own.strong->distances[i].positive, old.strong->distances[i].positive);
  }
  EXPECT_LT(off(found.coupling.expert_bias_LE, before.coupling.expert_bias_LE), 1e-13);
  for (size_t i = 0; i < before.coupling.pairs.size(); ++i) {
    const auto &one = found.coupling.pairs[i].centered, &expected = before.coupling.pairs[i].centered;
    EXPECT_NEAR(one.norm, expected.norm, 1e-12);
    EXPECT_NEAR(one.effective_rank, expected.effective_rank, 1e-10);
  }
  const auto removal = found.effects.sums.removal(hero::Contribution::kCentered);
  const auto expected = before.effects.sums.removal(hero::Contribution::kCentered);
  EXPECT_LT(off(removal.change_LL, expected.change_LL), 1e-15);
  EXPECT_LT(off(removal.kl_LL, expected.kl_LL), 1e-11);
  for (size_t i = 0; i < before.effects.losses.size(); ++i)
    EXPECT_NEAR(found.effects.losses[i].centered_loss, before.effects.losses[i].centered_loss, 1e-11);
}

void expect_other_raw(const Findings& found, const Findings& before, bool rows_moved) {
  EXPECT_GT(off(found.coupling.raw.dependency_LL, before.coupling.raw.dependency_LL), 0.1);
  EXPECT_GT(std::abs(found.coupling.raw.strong->tau - before.coupling.raw.strong->tau), 0.01);
  double percent = 0;
  for (size_t i = 0; i < before.coupling.raw.strong->distances.size(); ++i) {
    percent = std::max(percent, std::abs(found.coupling.raw.strong->distances[i].negative -
                                         before.coupling.raw.strong->distances[i].negative));
  }
  EXPECT_GT(percent, 0.1);
  if (!rows_moved) return;
  const auto removal = found.effects.sums.removal(hero::Contribution::kRaw);
  EXPECT_GT(off(removal.kl_LL, before.effects.sums.removal(hero::Contribution::kRaw).kl_LL), 1e-3);
  double loss = 0;
  for (size_t i = 0; i < before.effects.losses.size(); ++i)
    loss = std::max(loss, std::abs(found.effects.losses[i].loss - before.effects.losses[i].loss));
  EXPECT_GT(loss, 1e-6);
}

TEST(Gauge, RandomChangesLeaveRoutingAndWhatIsCentered) {
  const auto tokens = small::tokens(3, 13, 37, 3);
  uint64_t seed = 100;
  for (const auto& variant : kVariants) {
    for (const auto& change : kChanges) {
      for (int repetition = 0; repetition < 3; ++repetition, seed += 100) {
        SCOPED_TRACE(std::string(variant.name) + ", " + change.name + ", seed " + std::to_string(seed));
        hero::Transformer model(analyze::config_of(variant));
        small::perturb(model, 0.1, seed);
        const Findings before(model, tokens);
        const bool changed = change_gauge(model, change, seed + 50);
        const Findings found(model, tokens);
        expect_same_routing(found, before);
        expect_same_centered(found, before);
        if (changed) expect_other_raw(found, before, change.rows && variant.window != 1);
      }
    }
  }
}

// A shift of all logits is no freedom of sigmoid scores; moving rows between blocks still is.
TEST(Gauge, SigmoidScoresIgnoreMovedRowsOnly) {
  const auto tokens = small::tokens(3, 13, 37, 3);
  auto config = small::deepseek();
  config.model.scoring_func = "sigmoid";
  for (const auto& change : kChanges) {
    SCOPED_TRACE(change.name);
    hero::Transformer model(config);
    small::perturb(model, 0.1, 7);
    const Findings before(model, tokens);
    ASSERT_TRUE(change_gauge(model, change, 8));
    const Findings found(model, tokens);
    if (change.columns) {
      EXPECT_GT(std::abs(found.effects.utilisation.loss - before.effects.utilisation.loss), 1e-4);
    } else {
      expect_same_routing(found, before);
      expect_same_centered(found, before);
    }
  }
}

// Nothing is lost: centered blocks and bias make the same probabilities.
TEST(Gauge, CenteredBlocksAndBiasMakeTheSameRouting) {
  const auto tokens = small::tokens(3, 13, 37, 3);
  for (const auto& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    hero::Transformer model(analyze::config_of(variant));
    small::perturb(model, 0.1, 21);
    const Findings before(model, tokens);
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
    model.parameters().publish();
    expect_same_routing(Findings(model, tokens), before);
  }
}

}  // namespace
