// Parameters and operations by cost item: against the model, hand-computed values, and the paper's cost
// table.
#include "model/counts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/transformer.h"
#include "oracle/small_models.h"
#include "perf/stage_memory.h"
#include "perf/traffic.h"

namespace hero {
namespace counts_test {

double sum(const std::vector<CostItem>& items, double CostItem::* quantity) {
  double n = 0;
  for (const CostItem& item : items) n += item.*quantity;
  return n;
}

CostItem cost_item(const Config& config, const std::string& name) {
  for (const CostItem& p : model_costs(config)) {
    if (p.name == name) return p;
  }
  ADD_FAILURE() << "no cost item " << name;
  return {};
}

Config paper(const std::string& kind) {
  return load_config({HERO_SOURCE_DIR "/configs/paper-8b.toml"}, {"--router.kind=" + kind});
}

std::vector<Config> variants() {
  std::vector<Config> all = {small::qwen(), small::deepseek()};
  auto& c = all.emplace_back(small::deepseek());
  c.model.q_lora_rank = 9;
  c.model.n_shared_experts = 2;
  c.router.stages = 2;
  auto& d = all.emplace_back(small::qwen());
  d.model.decoder_sparse_step = 2;
  d.model.tie_word_embeddings = true;
  d.router.window = 1;
  auto& e = all.emplace_back(small::qwen());
  e.router.kind = "baseline";
  return all;
}

TEST(Counts, ParametersMatchModel) {
  for (const Config& config : variants()) {
    const Transformer model(config);
    int64_t elements = 0;
    for (const auto& p : model.parameters().all()) elements += p.leaf.numel();
    EXPECT_EQ(sum(model_costs(config), &CostItem::parameters), static_cast<double>(elements));
  }
}

TEST(Counts, OperationsMatchHandComputedValues) {
  Config c = small::qwen();  // D 24, 4 layers, 4 and 2 heads of 6, E 8, K 3, F 10, V 37
  c.train.sequence = 9;
  EXPECT_EQ(cost_item(c, "attention").forward, 4 * 2 * (24 * 6 * (4 + 2 + 2) + 4 * 6 * 24));
  EXPECT_EQ(cost_item(c, "attention scores").forward, 4 * 4 * 2 * 2 * 6 * (9 + 1) / 2);
  EXPECT_EQ(cost_item(c, "attention scores").backward(), 2 * cost_item(c, "attention scores").forward);
  EXPECT_EQ(cost_item(c, kRouterCost).backward(), 4 * 4 * 24 * 8);
  EXPECT_EQ(cost_item(c, kHistoryCost).forward, 2 * (0 + 1 + 2 + 3) * 8 * 8);
  EXPECT_EQ(cost_item(c, kHistoryCost).backward(), cost_item(c, kHistoryCost).forward);
  EXPECT_EQ(cost_item(c, "experts").active, 4 * 3 * 3 * 24 * 10);
  EXPECT_EQ(cost_item(c, "output").paper, 6 * 24 * 37);
  EXPECT_EQ(cost_item(c, "embedding").active, 0);
  c.router.detach = false;
  EXPECT_EQ(cost_item(c, kHistoryCost).backward(), 2 * cost_item(c, kHistoryCost).forward);
}

// Table "Time, memory and FLOPs comparison": router 1.55 T and 2.90 T (+87.50%), total 211.83 T and 213.18 T,
// for 65,536 tokens.
TEST(Counts, PaperCostTable) {
  constexpr double tokens = 65536;
  const auto router = [&](const std::string& kind) {
    return tokens * (cost_item(paper(kind), kRouterCost).paper + cost_item(paper(kind), kHistoryCost).paper);
  };
  EXPECT_NEAR(router("baseline"), 1.55e12, 0.005e12);
  EXPECT_NEAR(router("hero"), 2.90e12, 0.005e12);
  EXPECT_DOUBLE_EQ(router("hero") / router("baseline"), 1.875);
  EXPECT_NEAR(tokens * sum(model_costs(paper("baseline")), &CostItem::paper), 211.83e12, 0.005 * 211.83e12);
  EXPECT_NEAR(tokens * sum(model_costs(paper("hero")), &CostItem::paper), 213.18e12, 0.005 * 213.18e12);
  EXPECT_NEAR(sum(model_costs(paper("baseline")), &CostItem::active), 538e6, 0.5e6);
}

// Memory of the same table, +24.2 MiB per device: 64 data ranks, two stages, one micro-batch of 4,096 tokens.
TEST(Counts, PaperMemoryDifference) {
  const Layout layout{.data = 64, .pipeline = 2};
  const double difference =
      total(device_memory(paper("hero"), layout)) - total(device_memory(paper("baseline"), layout));
  EXPECT_NEAR(difference, 24.2 * (1 << 20), 0.01 * 24.2 * (1 << 20));
}

TEST(Traffic, TwoStages) {
  Config c = paper("hero");
  const auto sent = [&](const Layout& layout, const std::string& name) {
    for (const MemoryItem& item : device_traffic(c, layout)) {
      if (item.name == name) return item.bytes;
    }
    ADD_FAILURE() << "no kind " << name;
    return 0.0;
  };
  const Layout layout{.data = 64, .pipeline = 2};
  EXPECT_EQ(sent(layout, "activations between stages"), 65536.0 * 1024 * 2);
  EXPECT_EQ(sent({.data = 64, .pipeline = 4}, "activations between stages"), 2 * 65536.0 * 1024 * 2);
  EXPECT_EQ(sent(layout, "history between stages"), 0);
  EXPECT_EQ(sent(layout, "rows between expert ranks"), 0);
  EXPECT_EQ(sent({}, "gradients over data ranks"), 0);
  c.router.history = HistoryScope::kGlobal;  // 15 layers' probabilities in bf16
  EXPECT_EQ(sent(layout, "history between stages"), 65536.0 * 15 * 128 * 2);
  c.router.window = 3;
  EXPECT_EQ(sent(layout, "history between stages"), 65536.0 * 3 * 128 * 2);
  c.parallel.history_top = 8;  // with expert ids
  EXPECT_EQ(sent(layout, "history between stages"), 65536.0 * 3 * 8 * 4);
  c.router.history = HistoryScope::kStage;
  EXPECT_EQ(sent(layout, "history between stages"), 0);
  EXPECT_GT(sent({.data = 64, .pipeline = 4}, "history between stages"), 0);  // within the model's stages
  EXPECT_EQ(sent({.data = 64, .pipeline = 2, .chunks = 3}, "activations between stages"),
            5.0 * 65536 * 1024 * 2);
  c.router.coupling_loss = 0.1;  // with each token's top-k mass in fp32
  EXPECT_EQ(sent({.data = 64, .pipeline = 2, .chunks = 3}, "activations between stages"),
            5.0 * 65536 * (1024 * 2 + 4));
  c.router.coupling_loss = 0;
  EXPECT_EQ(sent({.data = 64, .pipeline = 4}, "embeddings between stages"), 0);
  // With 64 expert ranks, the 128 experts of 1,024 x 640 x 3 weights are not replicated, so not reduced.
  const double experts = 30.0 * 128 * 1024 * 640 * 3 * 4 * 63 / 64;
  EXPECT_DOUBLE_EQ(sent({.data = 64}, "gradients over data ranks") - experts,
                   sent({.data = 64, .expert = 64}, "gradients over data ranks"));
  EXPECT_EQ(sent({.expert = 4}, "rows between expert ranks"), 0.75 * 4 * 30 * 1024 * 4096 * 4 * 1024 * 2.0);
  c.train.recompute = true;  // dispatches and combines a second time
  EXPECT_EQ(sent({.expert = 4}, "rows between expert ranks"), 0.75 * 6 * 30 * 1024 * 4096 * 4 * 1024 * 2.0);
}

// Whatever their number, multi-token prediction modules need one message per micro-batch in each direction.
TEST(Traffic, MultiTokenPrediction) {
  Config c = small::deepseek();  // D 24, fp64
  c.train.micro_batch = 2, c.train.global_batch = 8, c.train.sequence = 12;
  for (const int64_t modules : {1, 3}) {
    c.model.num_nextn_predict_layers = modules;
    const auto sent = [&](const Layout& layout) {
      const auto items = device_traffic(c, layout);
      return std::ranges::find(items, "embeddings between stages", &MemoryItem::name)->bytes;
    };
    EXPECT_EQ(sent({.data = 2}), 0);
    EXPECT_EQ(sent({.data = 2, .pipeline = 2}), (8.0 * 12 / 2) * 24 * 8);
    EXPECT_EQ(sent({.data = 1, .pipeline = 2, .chunks = 2}), (8.0 * 12) * 24 * 8);
  }
}

TEST(Memory, StagesMatchTrainer) {
  Config c = small::deepseek();  // one dense layer, four MoE layers
  EXPECT_EQ(pipeline_stages(c, {.pipeline = 2}), (std::vector<int64_t>{0, 0, 0, 1, 1}));
  EXPECT_EQ(pipeline_stages(c, {.pipeline = 2, .chunks = 2}), (std::vector<int64_t>{0, 0, 1, 0, 1}));
  c.parallel.chunk_sizes = {1, 4};
  EXPECT_EQ(pipeline_stages(c, {.pipeline = 2}), (std::vector<int64_t>{0, 1, 1, 1, 1}));
  EXPECT_EQ(pipeline_stages(c, {}), (std::vector<int64_t>{0, 0, 0, 0, 0}));
}

// The last stage has the modules' weights and activations, and receives the embedded tokens.
TEST(Memory, ModulesAreOnTheLastStage) {
  const Config without = small::deepseek();
  Config with = without;
  with.model.num_nextn_predict_layers = 2;
  const auto shard = [](const Config& c, int64_t rank) {
    double weights = 0;
    const Transformer model(c, at::kCPU, pipeline_shard(c, rank, 2));
    for (const auto& p : model.parameters().all()) weights += static_cast<double>(p.leaf.numel());
    return weights;
  };
  for (const auto& config : {with, without}) {
    const auto weights = stage_weights(config, {.pipeline = 2});
    for (const int64_t rank : {0, 1}) EXPECT_EQ(weights[rank].all.sum(), shard(config, rank)) << rank;
  }
  const auto activations = [](const Config& c, const Layout& layout, int64_t stage) {
    const auto items = StageMemory(c, layout).items(stage, 1);
    return std::ranges::find(items, "activations", &MemoryItem::name)->bytes;
  };
  const Layout two{.pipeline = 2};
  EXPECT_EQ(activations(with, two, 0), activations(without, two, 0));
  const auto tokens = static_cast<double>(with.train.micro_batch * with.train.sequence);
  EXPECT_NEAR(activations(with, two, 1) - activations(without, two, 1),
              activations(with, {}, 0) - activations(without, {}, 0) + tokens * 24 * 8, 1e-6);
}

// In any layout, the optimizer state exists once across a stage's data ranks.
TEST(Memory, ExpertRanksShardOptimizerState) {
  const Config c = paper("hero");
  const auto moments = [&](const Layout& layout) {
    for (const MemoryItem& item : device_memory(c, layout)) {
      if (item.name == "optimizer moments") return item.bytes;
    }
    return 0.0;
  };
  EXPECT_DOUBLE_EQ(moments({.data = 64, .expert = 8}), moments({.data = 64}));
  EXPECT_DOUBLE_EQ(moments({.data = 64, .expert = 64}), moments({.data = 64}));
}

TEST(Memory, HistoryPerStage) {
  Config c = small::qwen();  // 4 MoE layers, E 8, fp64
  const double slot = 10 * (8 * 8 + 8);
  const auto bytes = [&](const Layout& layout, int64_t stage) {
    return HistoryCosts(c).bytes(/*tokens=*/10, layout, stage);
  };
  EXPECT_EQ(bytes({}, 0), 3 * slot);
  c.router.stages = 2;
  EXPECT_EQ(bytes({}, 0), 2 * slot);  // the last layer of each stage is never read
  EXPECT_EQ(bytes({.pipeline = 2}, 0), slot);
  EXPECT_EQ(bytes({.pipeline = 2}, 1), slot);
  c.router.history = HistoryScope::kGlobal;
  EXPECT_EQ(bytes({.pipeline = 2}, 0), 2 * slot);
  EXPECT_EQ(bytes({.pipeline = 2}, 1), 3 * slot);
  EXPECT_EQ(bytes({.pipeline = 2, .chunks = 2}, 0), (1 + 3) * slot);
  EXPECT_EQ(bytes({.pipeline = 2, .chunks = 2}, 1), (2 + 3) * slot);
  c.router.window = 1;  // layers 3 and 4 see 2 and 3
  EXPECT_EQ(bytes({.pipeline = 2}, 0), 2 * slot);
  EXPECT_EQ(bytes({.pipeline = 2}, 1), 2 * slot);
  c.model.mlp_only_layers = {1};  // a chunk of one dense layer passes on what later ones need
  c.parallel.chunk_sizes = {1, 1, 2};
  EXPECT_EQ(bytes({.pipeline = 3}, 1), slot);
  c.router.kind = "baseline";
  EXPECT_EQ(bytes({.pipeline = 2}, 1), 0);
}

}  // namespace counts_test
}  // namespace hero
