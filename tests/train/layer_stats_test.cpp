// The metrics of every layer, for routings with known statistics, and that RunLog writes each of them.
#include "train/layer_stats.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "hf/temporary_folder.h"
#include "train/run_log.h"

namespace hero {
namespace layer_stats_test {

using test::read_bytes;
using test::TemporaryFolder;
using json = nlohmann::ordered_json;

constexpr int64_t kLayers = 2, kExperts = 4, kTokens = 2;  // tokens of a micro-batch

HistoryLayout layout() {
  RouterConfig router;
  router.kind = "hero";  // layer 2 sees layer 1, which sees none
  return {kLayers, kExperts, router};
}

// Statistics with the means below over micro-batches 0 and 1. Layer 1 drops an assignment in each.
Routing routing(int64_t layer, int64_t micro_batch) {
  const auto m = static_cast<double>(micro_batch);
  auto stats = at::full({kTokens, ops::kRouteStats}, NAN, at::kFloat);
  stats.select(1, ops::kRmsHidden).fill_(1 + m);
  stats.select(1, ops::kRmsHistory).fill_(0.25 + m / 2);
  stats.select(1, ops::kRho).fill_(4 + 2 * m);
  stats.select(1, ops::kHiddenVariance).fill_(2 + 2 * m);
  stats.select(1, ops::kHistoryVariance).fill_(1);
  // Entropy log E in micro-batch 0, zero in micro-batch 1.
  auto probs = at::full({kTokens, kExperts}, 1.0 / kExperts, at::kDouble);
  if (micro_batch == 1) probs = at::eye(kExperts, at::kDouble).slice(0, 0, kTokens);
  const auto assigned = at::tensor({2, 1, 1, 0}, at::kLong);
  return {.layer = layer,
          .probs = probs,
          .stats = stats,
          .assigned = assigned,
          .counts = layer == 1 ? at::tensor({1, 1, 1, 0}, at::kLong) : assigned};
}

struct Step {
  Step() {
    for (const int64_t micro_batch : {0, 1}) {
      stats.add({routing(1, micro_batch), routing(2, micro_batch)});
      stats.add_tokens(kTokens);
    }
  }

  HistoryLayout layers = layout();
  LayerStats stats{layers, at::zeros({LayerStats::size(layers)}, at::kDouble)};
};

struct Expected {
  std::string key;
  std::optional<double> first, second;  // layers 1 and 2
};

std::vector<Expected> expected() {
  const double entropy = std::log(4.0) / 2;
  return {{"max_expert_share", 0.5, 1.0}, {"max_over_mean", 4.0 / 3, 2.0},
          {"entropy", entropy, entropy},  {"dropped", 2.0, 0.0},
          {"rms_hidden", 1.5, 1.5},       {"rms_history", std::nullopt, 0.5},
          {"rho", std::nullopt, 5.0},     {"history_variance_share", std::nullopt, 0.25}};
}

void expect_value(const std::optional<double>& got, const std::optional<double>& want) {
  ASSERT_EQ(got.has_value(), want.has_value());
  if (want) {
    EXPECT_NEAR(*got, *want, 1e-12);
  }
}

TEST(LayerStats, MetricsOfKnownStatistics) {
  const Step step;
  const auto totals = step.stats.totals();
  ASSERT_EQ(totals.size(), 2u);
  ASSERT_EQ(layer_metrics().size(), expected().size());
  for (size_t i = 0; i < expected().size(); ++i) {
    const auto& metric = layer_metrics()[i];
    const auto want = expected()[i];
    SCOPED_TRACE(want.key);
    EXPECT_EQ(metric.key, want.key);
    EXPECT_EQ(metric.tag(2), "layers_" + want.key + "/2");
    expect_value(metric.value(totals[0]), want.first);
    expect_value(metric.value(totals[1]), want.second);
  }
  EXPECT_EQ(step.stats.max_share(), 1.0);
}

TEST(LayerStats, MaxOverMeanWithoutTokensIsZero) {
  const auto layers = layout();
  LayerStats stats(layers, at::zeros({LayerStats::size(layers)}, at::kDouble));
  stats.add_tokens(kTokens);
  expect_value(layer_metrics()[1].value(stats.totals()[0]), 0.0);
}

TEST(RunLog, WritesEveryLayerMetric) {
  const TemporaryFolder run;
  const Step step;
  RunLog(run.path())
      .write({.step = 3, .max_expert_share = step.stats.max_share()}, step.stats,
             /*norms=*/std::nullopt, /*snapshot=*/false);

  const auto line = json::parse(read_bytes(run / "metrics.jsonl"));
  std::vector<std::string> keys;
  for (const auto& [key, values] : line["layers"].items()) keys.push_back(key);
  std::vector<std::string> want;
  for (const auto& metric : expected()) want.push_back(metric.key);
  EXPECT_EQ(keys, want);
  EXPECT_EQ(line["layers"]["dropped"].dump(), "[2,0]");
  EXPECT_EQ(line["layers"]["max_expert_share"].dump(), "[0.5,1.0]");
  EXPECT_EQ(line["layers"]["rho"].dump(), "[null,5.0]");
  EXPECT_EQ(line["max_expert_share"].get<double>(), 1.0);

  const std::filesystem::directory_iterator events(run / "tb");
  const auto bytes = read_bytes(events->path());
  for (const auto& metric : expected()) {
    const std::string tag = "layers_" + metric.key + "/";
    EXPECT_EQ(bytes.find(tag + "1") != std::string::npos, metric.first.has_value()) << tag;
    EXPECT_NE(bytes.find(tag + "2"), std::string::npos) << tag;
  }
}

}  // namespace layer_stats_test
}  // namespace hero
