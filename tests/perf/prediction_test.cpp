// Predictions against hand-computed values, on a cluster with round numbers.
#include "perf/prediction.h"

#include <gtest/gtest.h>

#include "model/counts.h"
#include "perf/comparison.h"
#include "perf/layouts.h"
#include "perf/small_run.h"

namespace hero {
namespace prediction_test {

constexpr double kTokens = 8 * 64, kRate = 0.5e12;

double seconds_of(const Prediction& prediction, const std::string& name) {
  for (const TimeItem& p : prediction.time) {
    if (p.name == name) return p.seconds;
  }
  ADD_FAILURE() << "no time item " << name;
  return 0;
}

Config on(int64_t data, int64_t pipeline, int64_t expert) {
  Config c = small_run();
  c.parallel.data = data;
  c.parallel.pipeline = pipeline;
  c.parallel.expert = expert;
  return c;
}

Config as_hero(Config config, HistoryScope history) {
  config.router.kind = "hero";
  config.router.history = history;
  return config;
}

TEST(Prediction, OneGpuTakesMatmulTime) {
  Config c = small_run();
  const double all = training_flops_per_token(c) * kTokens / kRate;
  EXPECT_NEAR(predict(c, round_cluster(1)).seconds, all, 1e-12 * all);
  EXPECT_NEAR(predict(c, round_cluster(1)).mfu, 0.5, 1e-12);
  double again = 0;
  for (const CostItem& p : model_costs(c)) again += p.name == "output" ? 0 : p.forward * kTokens / kRate;
  c.train.recompute = true;
  EXPECT_NEAR(predict(c, round_cluster(1)).seconds, all + again, 1e-12 * all);
}

Config with_modules(int64_t modules) {
  Config c = as_baseline(small_run());
  c.model.model_type = ModelType::kDeepseekV3;
  c.model.num_nextn_predict_layers = modules;
  return c;
}

TEST(Prediction, ModulesTakeTheirMatmulTime) {
  const Config c = with_modules(2);
  const double all = training_flops_per_token(c) * kTokens / kRate;
  EXPECT_NEAR(predict(c, round_cluster(1)).seconds, all, 1e-12 * all);
}

// The last chunk has the modules; with two chunks, the embedded tokens and their gradient add to the
// messages.
TEST(Prediction, ModulesAreInTheLastChunk) {
  for (const int64_t pipeline : {2, 4}) {
    Config c = with_modules(2), without = with_modules(0);
    c.parallel.pipeline = without.parallel.pipeline = pipeline;
    const auto with = pipeline_costs(c, round_cluster(pipeline)),
               main = pipeline_costs(without, round_cluster(pipeline));
    for (int64_t chunk = 0; chunk + 1 < pipeline; ++chunk)
      EXPECT_EQ(with.forward[chunk], main.forward[chunk]);
    double added = 0;
    for (const CostItem& item : model_costs(c)) added += item.forward;
    for (const CostItem& item : model_costs(without)) added -= item.forward;
    EXPECT_NEAR(with.forward.back() - main.forward.back(), 64 * added / kRate, 1e-12 * with.forward.back());
    const double embedded = pipeline == 2 ? 64 * 64 * 2 : 0;
    EXPECT_EQ(with.activations.front() - main.activations.front(), embedded);
    EXPECT_EQ(with.gradients.back() - main.gradients.back(), embedded);
  }
}

// For a single micro-batch, memory traffic equals that of `hero cost`, except for packed weights.
TEST(Prediction, MemoryBandwidthAddsTime) {
  Config c = as_baseline(small_run());
  c.train.global_batch = 1;
  Cluster cluster = round_cluster(1);
  cluster.bandwidth_memory_gbs = 10;
  double saved = 64 * 3 * 64 * 2.0, weights = 512 * 64;  // head
  for (int64_t i = 0; i < 4; ++i) {
    saved += layer_activation_bytes(c, i, 64);
    for (const CostItem& p : layer_costs(c, i, 0)) weights += p.parameters;
  }
  const double expected = (5 * saved + weights * (2 * 2 + 2 * 4)) / 10e9;
  EXPECT_NEAR(seconds_of(predict(c, cluster), "activations and weights in memory"), expected,
              1e-12 * expected);
  const double baseline = expected;
  // Slots of 8 bf16 values and a sum are written, 0 + 1 + 2 + 3 slots read twice.
  c = as_hero(c, HistoryScope::kGlobal);
  double routers = 0;
  for (int64_t i = 0; i < 4; ++i) routers += static_cast<double>(i) * 8 * 8;
  const double history = 64 * (4 * (8 * 2 + 4) + 2 * 6 * 8 * 2) + routers * (2 * 2 + 2 * 4);
  EXPECT_NEAR(seconds_of(predict(c, cluster), "activations and weights in memory"), baseline + history / 10e9,
              1e-12 * baseline);
}

TEST(Prediction, RowsBetweenExpertRanks) {
  // Dispatch and combine, forward and backward, 4 layers, 4 micro-batches: half of the rows leave the GPU.
  const double rows = 64.0 * 2 * 64 * 2 / 2;
  Cluster cluster = round_cluster(2);
  EXPECT_DOUBLE_EQ(seconds_of(predict(on(2, 1, 2), cluster), "rows between expert ranks"),
                   4 * 4 * 4 * rows / 100e9);
  cluster.latency_node_us = 3;
  EXPECT_DOUBLE_EQ(seconds_of(predict(on(2, 1, 2), cluster), "rows between expert ranks"),
                   4 * 4 * 4 * (rows / 100e9 + 3e-6));
  cluster.latency_node_us = 0;
  cluster.gpus_per_node = 1;
  EXPECT_DOUBLE_EQ(seconds_of(predict(on(2, 1, 2), cluster), "rows between expert ranks"),
                   4 * 4 * 4 * rows / 10e9);
  // 8 ranks in nodes of 4: half of the rows go to the other node, three eighths stay within the node.
  EXPECT_DOUBLE_EQ(seconds_of(predict(on(8, 1, 8), round_cluster(8)), "rows between expert ranks"),
                   4 * 4 * rows / 10e9);
}

TEST(Prediction, WeightsOverDataRanks) {
  const Config four = on(4, 1, 1), eight = on(8, 1, 1), split = on(8, 1, 4);
  const auto seconds = [](const Config& c) {
    return seconds_of(predict(c, round_cluster(c.parallel.data)), "weights over data ranks");
  };
  const WeightCount weights = stage_weights(four, layout_of(four))[0].trained;
  EXPECT_DOUBLE_EQ(seconds(four), weights.sum() * 2 * 3 / 4 / 100e9);
  EXPECT_DOUBLE_EQ(seconds(eight), weights.sum() * 2 * 7 / 8 / 40e9);  // four network links per node
  // Two ranks with the same experts, one per node: each uses its own link.
  EXPECT_DOUBLE_EQ(seconds(split),
                   weights.common * 2 * 7 / 8 / 40e9 + weights.experts / 4 * 2 * 1 / 2 / 10e9);
}

TEST(Prediction, GradientsOverlapWithLastBackwardPass) {
  const Config c = on(4, 1, 1);
  const double bytes = stage_weights(c, layout_of(c))[0].trained.sum() * 4 * 3 / 4;
  Cluster cluster = round_cluster(4);
  const auto exposed = [&] {
    return seconds_of(predict(c, cluster), "gradients over data ranks, not hidden");
  };
  cluster.bandwidth_node_gbs = 1e6;  // overlapped, except for one of four layers
  EXPECT_NEAR(exposed(), bytes / 1e15 / 4, 1e-12 * bytes / 1e15);
  cluster.bandwidth_node_gbs = 1e-3;
  double backward = 0;  // of one micro-batch of 64 tokens, three quarters of it overlap
  for (const CostItem& p : model_costs(c)) backward += p.backward() * 64 / kRate;
  EXPECT_NEAR(exposed(), bytes / 1e6 - 0.75 * backward, 1e-9);
}

TEST(Prediction, HistoryIsSentIfLaterLayersSeeIt) {
  const Config c = on(1, 2, 1);
  const double rows = 64 * 64 * 2, slot = 64 * 8 * 2;
  const auto sent = [](const Config& config) { return pipeline_costs(config, round_cluster(2)).activations; };
  EXPECT_EQ(sent(as_baseline(c)), (std::vector<double>{rows, 0}));
  EXPECT_EQ(sent(as_hero(c, HistoryScope::kStage)), (std::vector<double>{rows, 0}));
  EXPECT_EQ(sent(as_hero(c, HistoryScope::kGlobal)), (std::vector<double>{rows + 2 * slot, 0}));
  Config four = on(1, 4, 1);  // the model's two stages on four ranks
  EXPECT_EQ(sent(as_hero(four, HistoryScope::kStage)),
            (std::vector<double>{rows + slot, rows, rows + slot, 0}));
  EXPECT_EQ(sent(as_hero(four, HistoryScope::kGlobal)),
            (std::vector<double>{rows + slot, rows + 2 * slot, rows + 3 * slot, 0}));
  EXPECT_EQ(pipeline_costs(four, round_cluster(4)).gradients, (std::vector<double>{0, rows, rows, rows}));
  four.router.coupling_loss = 0.1;  // each token's top-k mass in fp32
  const double more = rows + 64 * 4;
  EXPECT_EQ(sent(as_baseline(four)), (std::vector<double>{more, more, more, 0}));
  EXPECT_EQ(pipeline_costs(four, round_cluster(4)).gradients, (std::vector<double>{0, more, more, more}));
}

TEST(Prediction, BubblesOfEqualChunksMatchFormula) {
  for (const auto& [schedule, chunks] : {std::pair<PipelineSchedule, int64_t>{PipelineSchedule::k1F1B, 1},
                                         {PipelineSchedule::kInterleaved, 2}}) {
    Config c = as_baseline(on(1, 2, 1));
    c.model.vocab_size = 1;  // negligible output projection
    c.parallel.schedule = schedule;
    c.parallel.chunks = chunks;
    Cluster cluster = round_cluster(2);
    cluster.bandwidth_node_gbs = 1e6;
    const auto found = predict(c, cluster);
    EXPECT_NEAR(found.bubble, found.ideal_bubble, 0.002) << name_of(schedule);
    EXPECT_DOUBLE_EQ(found.ideal_bubble, schedule == PipelineSchedule::k1F1B ? 1.0 / 9 : 1.0 / 17);
  }
}

TEST(Prediction, TimeItemsAddUpToStep) {
  Cluster cluster = round_cluster(8);
  cluster.bandwidth_memory_gbs = 50;
  cluster.latency_network_us = 10;
  for (const Config& c : layouts(as_hero(small_run(), HistoryScope::kGlobal), cluster)) {
    const auto found = predict(c, cluster);
    double sum = 0;
    for (const TimeItem& p : found.time) {
      EXPECT_GE(p.seconds, -1e-12) << p.name;
      sum += p.seconds;
    }
    EXPECT_NEAR(sum, found.seconds, 1e-9 * sum);
    const double baseline = predict(as_baseline(c), cluster).seconds,
                 stage = predict(as_hero(c, HistoryScope::kStage), cluster).seconds;
    EXPECT_LT(baseline, stage);
    EXPECT_LE(stage, found.seconds);
  }
}

// With the efficiency fitted to the baseline's hours, HERO adds less than 1% to the step.
TEST(Prediction, PaperRun) {
  Config c = load_config({"configs/paper-8b.toml"},
                         {"--parallel.data=64", "--parallel.pipeline=2", "--parallel.expert=8"});
  Cluster cluster = read_cluster("configs/clusters/paper.toml", {});
  EXPECT_EQ(micro_batches_of(c) * c.train.sequence, 65536);
  const double step = 71.88 * 3600 / 25000;
  cluster.efficiency = fit_efficiency(as_baseline(c), cluster, step);
  EXPECT_NEAR(predict(as_baseline(c), cluster).seconds, step, 1e-9);
  const double hero = predict(as_hero(c, HistoryScope::kStage), cluster).seconds / step - 1;
  EXPECT_GT(hero, 0.001);
  EXPECT_LT(hero, 0.01);
}

TEST(Comparison, PredictsTheBaselineAndBothScopesOfTheHistory) {
  const Config c = on(1, 2, 1);
  const Cluster cluster = round_cluster(2);
  const auto seconds = [&](const Config& config) { return predict(config, cluster).seconds; };
  for (const Config& configured :
       {as_baseline(c), as_hero(c, HistoryScope::kStage), as_hero(c, HistoryScope::kGlobal)}) {
    const Comparison compared = compare(configured, cluster);
    std::vector<double> found;
    for (const Prediction& prediction : compared.predictions) found.push_back(prediction.seconds);
    EXPECT_EQ(found, (std::vector<double>{seconds(as_baseline(c)), seconds(as_hero(c, HistoryScope::kStage)),
                                          seconds(as_hero(c, HistoryScope::kGlobal))}));
    EXPECT_EQ(compared.configured().seconds, seconds(configured));
  }
}

}  // namespace prediction_test
}  // namespace hero
