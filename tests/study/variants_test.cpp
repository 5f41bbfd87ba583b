// Which variants are the same model, and which layers a window truncates.
#include "study/variants.h"

#include <gtest/gtest.h>

#include <functional>

namespace hero {
namespace variants_test {

// `layers` layers in `stages` stages, HERO router with this window (0: none).
Config with_window(int64_t layers, int64_t stages, int64_t window) {
  Config config;
  config.model.num_hidden_layers = layers;
  config.router.kind = "hero";
  config.router.stages = stages;
  config.router.window = window;
  return config;
}

TEST(SameModel, WindowsThatCoverAllPredecessors) {
  // The last of 12 layers on one stage sees 11.
  EXPECT_TRUE(same_model(with_window(12, 1, 0), with_window(12, 1, 11)));
  EXPECT_FALSE(same_model(with_window(12, 1, 0), with_window(12, 1, 10)));
  // Two stages of 6: at most 5 are visible.
  EXPECT_TRUE(same_model(with_window(12, 2, 0), with_window(12, 2, 5)));
  EXPECT_TRUE(same_model(with_window(12, 2, 10), with_window(12, 2, 5)));
  EXPECT_FALSE(same_model(with_window(12, 2, 0), with_window(12, 2, 4)));
  EXPECT_FALSE(same_model(with_window(12, 1, 0), with_window(12, 2, 0)));
}

TEST(SameModel, StagesAndScopeThatLeaveEveryHistoryUnchanged) {
  Config global = with_window(12, 1, 0);
  global.router.history = HistoryScope::kGlobal;
  EXPECT_TRUE(same_model(with_window(12, 1, 0), global));
  EXPECT_FALSE(same_model(with_window(12, 2, 0), global));
  Config sizes = with_window(12, 2, 0);
  sizes.router.stage_sizes = {6, 6};
  EXPECT_TRUE(same_model(with_window(12, 2, 0), sizes));
  sizes.router.stage_sizes = {5, 7};
  EXPECT_FALSE(same_model(with_window(12, 2, 0), sizes));
  Config stages = global;
  stages.router.stages = 3;
  EXPECT_TRUE(same_model(global, stages));
  // The pipeline ranks of other stages receive other parts of the history.
  global.parallel.history_top = stages.parallel.history_top = 2;
  EXPECT_FALSE(same_model(global, stages));
}

// The router of a multi-token prediction module sees one layer more than the last one of the main model.
TEST(SameModel, ModulesSeeHistoryToo) {
  Config whole = with_window(4, 1, 0), cut = with_window(4, 1, 3);
  EXPECT_TRUE(same_model(whole, cut));
  EXPECT_EQ(layers_cut(cut), 0);
  for (Config* config : {&whole, &cut}) config->model.num_nextn_predict_layers = 1;
  EXPECT_FALSE(same_model(whole, cut));
  EXPECT_EQ(layers_cut(cut), 1);
}

TEST(SameModel, BaselineIgnoresHistorySettings) {
  Config a, b;
  b.router.window = 3;
  b.router.scale = false;
  EXPECT_TRUE(same_model(a, b));
  b.router.kind = "hero";
  EXPECT_FALSE(same_model(a, b));
}

TEST(SameModel, OtherDifferencesMakeAnotherModel) {
  const std::function<void(Config&)> changes[] = {
      [](Config& c) { c.router.scale = false; },    [](Config& c) { c.router.coupling_loss = 1e-3; },
      [](Config& c) { c.router.balance_loss = 0; }, [](Config& c) { c.optim.lr *= 2; },
      [](Config& c) { c.train.seed += 1; },
  };
  for (const auto& change : changes) {
    Config other = with_window(6, 1, 0);
    change(other);
    EXPECT_FALSE(same_model(with_window(6, 1, 0), other));
  }
}

TEST(LayersCut, CountsRoutersWithTruncatedHistory) {
  EXPECT_EQ(layers_cut(with_window(16, 1, 10)), 5);  // layers 12 to 16
  EXPECT_EQ(layers_cut(with_window(16, 1, 1)), 14);  // layers 3 to 16
  EXPECT_EQ(layers_cut(with_window(30, 2, 10)), 8);  // the paper's model: 12 to 15 and 27 to 30
  EXPECT_EQ(layers_cut(with_window(16, 1, 15)), 0);
  EXPECT_EQ(layers_cut(with_window(16, 1, 0)), 0);
  EXPECT_EQ(layers_cut(Config()), 0);
}

}  // namespace variants_test
}  // namespace hero
