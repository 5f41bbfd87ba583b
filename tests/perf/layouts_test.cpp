#include "perf/layouts.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "io/error.h"
#include "perf/small_run.h"

namespace hero {
namespace layouts_test {

TEST(Layouts, AllAreValidAndUnique) {
  std::set<std::string> seen, kinds;
  bool recomputed = false, split = false;
  for (const Config& c : layouts(small_run(), round_cluster(8))) {
    EXPECT_NO_THROW(check(c));
    EXPECT_EQ(c.parallel.data * c.parallel.pipeline, 8);
    EXPECT_TRUE(seen.insert(dump(c)).second) << dump(c);
    kinds.insert(name_of(c.parallel.schedule) + std::to_string(c.parallel.chunks));
    recomputed |= c.train.recompute;
    split |= c.parallel.expert == 8;
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"1f1b1", "interleaved2", "zero_bubble1"}));  // 4 layers
  EXPECT_TRUE(recomputed && split);
  EXPECT_TRUE(layouts(small_run(), round_cluster(7)).empty());
}

// Seconds of the slowest chunk.
double slowest_chunk(Config c, const Cluster& cluster, const std::vector<int64_t>& sizes) {
  c.parallel.pipeline = static_cast<int64_t>(sizes.size());
  c.parallel.chunk_sizes = sizes;
  const auto costs = pipeline_costs(c, cluster);
  double most = 0;
  for (size_t i = 0; i < sizes.size(); ++i)
    most = std::max(most, costs.forward[i] + costs.input_gradient[i] + costs.weight_gradient[i]);
  return most;
}

TEST(Layouts, BalancedChunksMatchExhaustiveSearch) {
  Config c = as_baseline(small_run());
  Cluster cluster = round_cluster(8);
  cluster.bandwidth_memory_gbs = 50;
  c.model.num_hidden_layers = 9;
  c.model.mlp_only_layers = {0, 4};
  for (const int64_t vocabulary : {1, 512, 20000}) {
    c.model.vocab_size = vocabulary;
    double two = std::numeric_limits<double>::infinity(), three = two;
    for (int64_t a = 1; a < 9; ++a) {
      two = std::min(two, slowest_chunk(c, cluster, {a, 9 - a}));
      for (int64_t b = 1; a + b < 9; ++b)
        three = std::min(three, slowest_chunk(c, cluster, {a, b, 9 - a - b}));
    }
    for (const auto& split : balanced_splits(c, cluster, 2))
      EXPECT_NEAR(slowest_chunk(c, cluster, split), two, 1e-9 * two) << vocabulary;
    for (const auto& split : balanced_splits(c, cluster, 3))
      EXPECT_NEAR(slowest_chunk(c, cluster, split), three, 1e-9 * three) << vocabulary;
  }
  using Splits = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(balanced_splits(c, cluster, 1), Splits({{9}}));
  EXPECT_EQ(balanced_splits(c, cluster, 9), Splits({std::vector<int64_t>(9, 1)}));
}

// Two modules with an output projection each leave one decoder layer for the second stage.
TEST(Layouts, ModulesCountAsWorkOfTheLastStage) {
  Config c = as_baseline(small_run());
  c.model.model_type = ModelType::kDeepseekV3;
  c.model.num_nextn_predict_layers = 2;
  const Cluster cluster = round_cluster(2);
  EXPECT_EQ(balanced_splits(c, cluster, 2).front(), (std::vector<int64_t>{3, 1}));
  bool found = false;
  for (const Config& layout : layouts(c, cluster))
    found |= layout.parallel.pipeline == 2 && layout.parallel.chunk_sizes == std::vector<int64_t>{3, 1};
  EXPECT_TRUE(found);
}

TEST(Layouts, SearchFindsFastestThatFit) {
  const auto all = layouts(small_run(), round_cluster(8));
  Cluster cluster = round_cluster(8);
  std::vector<double> needed;
  for (const Config& c : all) needed.push_back(total(planned_memory(c, schedule_of(c))));
  std::ranges::sort(needed);
  cluster.memory_gib = needed[needed.size() / 2] / (1 << 30);
  std::vector<double> seconds;
  for (const Config& c : all) {
    if (total(planned_memory(c, schedule_of(c))) <= needed[needed.size() / 2])
      seconds.push_back(predict(c, cluster).seconds);
  }
  std::ranges::sort(seconds);
  int64_t reported = 0;
  const auto found = search(all, cluster, 3, [&](int64_t done) { reported = done; });
  EXPECT_EQ(reported, static_cast<int64_t>(all.size()));
  EXPECT_EQ(found.tried, reported);
  EXPECT_EQ(found.fitting, static_cast<int64_t>(seconds.size()));
  EXPECT_EQ(found.min_memory, needed.front());
  ASSERT_EQ(found.fastest.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(found.fastest[i].prediction.seconds, seconds[i]);
}

TEST(Layouts, ConfiguredLayoutUsesAllGpus) {
  Config c = small_run();
  c.parallel.data = 0;
  c.parallel.pipeline = 2;
  EXPECT_EQ(configured_layout(c, round_cluster(8)).parallel.data, 4);
  c.parallel.data = 2;
  EXPECT_THROW(configured_layout(c, round_cluster(8)), UserError);
}

TEST(Layouts, FittedEfficiencyRoundTrips) {
  Config c = small_run();
  c.parallel.pipeline = 2;
  Cluster cluster = round_cluster(2);
  cluster.efficiency = 0.037;
  const double seconds = predict(c, cluster).seconds;
  EXPECT_NEAR(fit_efficiency(c, round_cluster(2), seconds), 0.037, 1e-9);
  try {
    fit_efficiency(c, cluster, seconds / 100);
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()).rfind("--hours: found", 0), 0u) << error.what();
  }
}

}  // namespace layouts_test
}  // namespace hero
