#include <gtest/gtest.h>

#include "config/config.h"
#include "config/failure.h"

namespace hero {
namespace layers_test {

using Layers = std::vector<int64_t>;

RouterConfig router(int64_t window, HistoryScope history = HistoryScope::kStage) {
  RouterConfig out;
  out.window = window;
  out.history = history;
  return out;
}

RouterConfig stages(int64_t count, const Layers& sizes = {}) {
  RouterConfig out;
  out.stages = count;
  out.stage_sizes = sizes;
  return out;
}

TEST(StageOfLayers, FirstStagesAreLarger) {
  EXPECT_EQ(stage_of_layers(6, stages(1)), (Layers{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(stage_of_layers(6, stages(2)), (Layers{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(stage_of_layers(7, stages(3)), (Layers{0, 0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(stage_of_layers(8, stages(3)), (Layers{0, 0, 0, 1, 1, 1, 2, 2}));
  EXPECT_EQ(stage_of_layers(3, stages(3)), (Layers{0, 1, 2}));
}

TEST(StageOfLayers, RejectsEmptyStages) {
  EXPECT_EQ(failure([] { stage_of_layers(3, stages(4)); }),
            "router.stages: found 4, expected at least 1 and at most the 3 MoE layers");
  EXPECT_EQ(failure([] { stage_of_layers(3, stages(0)); }),
            "router.stages: found 0, expected at least 1 and at most the 3 MoE layers");
}

TEST(StageOfLayers, GivenSizes) {
  EXPECT_EQ(stage_of_layers(5, stages(2, {1, 4})), (Layers{0, 1, 1, 1, 1}));
  EXPECT_EQ(failure([] { stage_of_layers(5, stages(2, {1, 3})); }),
            "router.stage_sizes: found sizes with sum 4, expected positive sizes with sum 5, the number of "
            "MoE layers");
  EXPECT_EQ(failure([] { stage_of_layers(5, stages(2, {0, 5})); }),
            "router.stage_sizes: found sizes with sum 5, expected positive sizes with sum 5, the number of "
            "MoE layers");
}

TEST(MoeLayerNumbers, DenseLayersDoNotCount) {
  ModelConfig model;
  model.num_hidden_layers = 6;
  model.decoder_sparse_step = 2;
  EXPECT_EQ(moe_layer_numbers(model), (Layers{0, 1, 0, 2, 0, 3}));
  model.mlp_only_layers = {3};
  EXPECT_EQ(moe_layer_numbers(model), (Layers{0, 1, 0, 0, 0, 2}));
  EXPECT_EQ(moe_layers(model), 2);
}

TEST(VisibleLayers, StageLocal) {
  const Layers stages = {0, 0, 0, 1, 1, 1};
  EXPECT_EQ(visible_layers(1, stages, router(0)), Layers{});
  EXPECT_EQ(visible_layers(2, stages, router(0)), (Layers{1}));
  EXPECT_EQ(visible_layers(3, stages, router(0)), (Layers{1, 2}));
  EXPECT_EQ(visible_layers(4, stages, router(0)), Layers{});
  EXPECT_EQ(visible_layers(5, stages, router(0)), (Layers{4}));
  EXPECT_EQ(visible_layers(6, stages, router(0)), (Layers{4, 5}));
}

TEST(VisibleLayers, WindowKeepsMostRecentLayers) {
  const Layers stages = {0, 0, 0, 0, 1, 1, 1};
  EXPECT_EQ(visible_layers(4, stages, router(2)), (Layers{2, 3}));
  EXPECT_EQ(visible_layers(4, stages, router(3)), (Layers{1, 2, 3}));
  EXPECT_EQ(visible_layers(4, stages, router(10)), (Layers{1, 2, 3}));
  EXPECT_EQ(visible_layers(5, stages, router(2)), Layers{});
  EXPECT_EQ(visible_layers(6, stages, router(2)), (Layers{5}));
  EXPECT_EQ(visible_layers(7, stages, router(1)), (Layers{6}));
}

TEST(VisibleLayers, GlobalHistoryCrossesStages) {
  const Layers stages = {0, 0, 1, 1};
  EXPECT_EQ(visible_layers(1, stages, router(0, HistoryScope::kGlobal)), Layers{});
  EXPECT_EQ(visible_layers(3, stages, router(0, HistoryScope::kGlobal)), (Layers{1, 2}));
  EXPECT_EQ(visible_layers(4, stages, router(0, HistoryScope::kGlobal)), (Layers{1, 2, 3}));
  EXPECT_EQ(visible_layers(4, stages, router(2, HistoryScope::kGlobal)), (Layers{2, 3}));
}

TEST(VisibleLayers, UnequalStages) {
  const Layers stages = {0, 1, 1, 1, 1, 2};
  EXPECT_EQ(visible_layers(5, stages, router(0)), (Layers{2, 3, 4}));
  EXPECT_EQ(visible_layers(6, stages, router(0)), Layers{});
}

TEST(MoeLayers, DenseLayersDoNotCount) {
  ModelConfig model;
  model.num_hidden_layers = 8;
  model.first_k_dense_replace = 3;
  EXPECT_EQ(moe_layers(model), 5);
}

}  // namespace layers_test
}  // namespace hero
