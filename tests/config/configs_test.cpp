// Files in configs/: each loads, is valid, and matches its header comment.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "config/config.h"

namespace hero {
namespace configs_test {

const std::set<std::string> kBases = {"demo",          "small-qwen3", "small-deepseek", "small-olmoe",
                                      "small-mixtral", "paper-8b",    "qwen3",          "study-deepseek",
                                      "study-qwen3",   "qwen3-2b"};
const std::set<std::string> kOverlays = {"baseline", "hero",   "rcp",        "mask1",     "mask3",
                                         "mask5",    "mask10", "no-scaling", "zero-init", "rmoe"};
const std::set<std::string> kTrainingOverlays = {"muon", "sft", "documents", "wsd", "mtp"};

std::string path(const std::string& name) { return HERO_SOURCE_DIR "/configs/" + name + ".toml"; }

std::vector<std::filesystem::path> model_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(HERO_SOURCE_DIR "/configs")) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

Config load(const std::vector<std::string>& names) {
  std::vector<std::string> files;
  for (const std::string& name : names) files.push_back(path(name));
  Config config = load_config(files, {});
  check(config);
  return config;
}

// Number of parameters from the layers' shapes (no biases, one weight per norm channel).
int64_t parameters(const Config& config) {
  const ModelConfig& m = config.model;
  const int64_t D = m.hidden_size, H = m.num_attention_heads, E = m.num_experts;
  int64_t attention = 0;
  if (!m.is_deepseek()) {
    attention = 2 * D * (H + m.num_key_value_heads) * m.head_dim;
    if (m.model_type == ModelType::kQwen3Moe) attention += 2 * m.head_dim;
    if (m.model_type == ModelType::kOlmoe) attention += (H + m.num_key_value_heads) * m.head_dim;
  } else {
    const int64_t qk = m.qk_nope_head_dim + m.qk_rope_head_dim;
    attention = m.q_lora_rank ? D * m.q_lora_rank + m.q_lora_rank + m.q_lora_rank * H * qk : D * H * qk;
    attention += D * (m.kv_lora_rank + m.qk_rope_head_dim) + m.kv_lora_rank;
    attention += m.kv_lora_rank * H * (m.qk_nope_head_dim + m.v_head_dim) + H * m.v_head_dim * D;
  }
  const int64_t layer =
      attention + 2 * D + E * D + 3 * D * m.moe_intermediate_size * (E + m.n_shared_experts);
  int64_t total = m.num_hidden_layers * layer + 2 * m.vocab_size * D + D;
  if (config.router.kind == "hero") {
    const std::vector<int64_t> stages = stage_of_layers(moe_layers(m), config.router);
    for (int64_t l = 1; l <= moe_layers(m); ++l) {
      total += E * E * static_cast<int64_t>(visible_layers(l, stages, config.router).size());
    }
  }
  return total;
}

TEST(Configs, FolderContents) {
  std::set<std::string> found;
  for (const auto& file : model_files()) found.insert(file.stem().string());
  std::set<std::string> wanted = kBases;
  wanted.insert(kOverlays.begin(), kOverlays.end());
  wanted.insert(kTrainingOverlays.begin(), kTrainingOverlays.end());
  EXPECT_EQ(found, wanted);
}

TEST(Configs, EveryFileHasHeaderComment) {
  for (const auto& file : model_files()) {
    std::string line;
    std::getline(std::ifstream(file) >> std::ws, line);
    EXPECT_TRUE(line.starts_with("# ")) << file;
  }
}

TEST(Configs, OverlaysChangeOnlyRouterOptions) {
  for (const std::string& base : kBases) {
    const Config alone = load({base});
    for (const std::string& overlay : kOverlays) {
      for (const std::string& change : differences(alone, load({base, overlay}))) {
        EXPECT_TRUE(change.starts_with("router.")) << base << " with " << overlay << ": " << change;
      }
    }
  }
}

TEST(Configs, OverlayDifferences) {
  using Changes = std::vector<std::string>;
  const Config base = load({"small-qwen3"});
  EXPECT_EQ(differences(base, load({"small-qwen3", "hero"})), Changes{});
  EXPECT_EQ(differences(base, load({"small-qwen3", "baseline"})),
            Changes{"router.kind: \"hero\" -> \"baseline\""});
  EXPECT_EQ(differences(base, load({"small-qwen3", "rmoe"})), Changes{"router.kind: \"hero\" -> \"rmoe\""});
  EXPECT_EQ(differences(base, load({"small-qwen3", "muon"})),
            (Changes{"train.norms_every: 0 -> 10", "optim.kind: \"adamw\" -> \"muon\""}));
  EXPECT_EQ(differences(base, load({"small-qwen3", "sft"})),
            (Changes{"train.pack: \"concat\" -> \"best_fit\"", "train.loss_mask: false -> true",
                     "optim.lr: 0.001 -> 1e-04", "optim.min_lr: 1e-04 -> 1e-05"}));
  EXPECT_EQ(differences(base, load({"small-qwen3", "documents"})),
            (Changes{"train.document_mask: false -> true", "train.document_positions: false -> true"}));
  EXPECT_EQ(differences(load({"small-deepseek"}), load({"small-deepseek", "mtp"})),
            Changes{"model.num_nextn_predict_layers: 0 -> 1"});
  EXPECT_EQ(differences(base, load({"small-qwen3", "rcp"})),
            (Changes{"router.kind: \"hero\" -> \"baseline\"", "router.coupling_loss: 0.0 -> 0.001"}));
  EXPECT_EQ(differences(base, load({"small-qwen3", "no-scaling"})), Changes{"router.scale: true -> false"});
  EXPECT_EQ(differences(base, load({"small-qwen3", "zero-init"})),
            Changes{"router.init: \"uniform\" -> \"zero\""});
  for (const int window : {1, 3, 5, 10}) {
    const std::string number = std::to_string(window);
    EXPECT_EQ(differences(base, load({"small-qwen3", "mask" + number})),
              Changes{"router.window: 0 -> " + number});
  }
}

TEST(Configs, WsdOverlay) {
  const std::vector<std::string> changes = {"optim.min_lr: 1e-04 -> 0.0",
                                            "optim.schedule: \"cosine\" -> \"wsd\"",
                                            "optim.decay_shape: \"linear\" -> \"1-sqrt\""};
  for (const char* base : {"small-qwen3", "small-deepseek", "demo"})
    EXPECT_EQ(differences(load({base}), load({base, "wsd"})), changes) << base;
}

TEST(Configs, OverlaysApplyInOrder) {
  EXPECT_EQ(load({"demo", "mask3", "mask5"}).router.window, 5);
  EXPECT_EQ(load({"demo", "mask5", "mask3"}).router.window, 3);
  const Config both = load({"demo", "mask3", "no-scaling"});
  EXPECT_EQ(both.router.window, 3);
  EXPECT_FALSE(both.router.scale);
}

TEST(Configs, ParameterCounts) {
  EXPECT_EQ(parameters(load({"small-qwen3", "baseline"})), 37'294'848);
  EXPECT_EQ(parameters(load({"small-qwen3"})), 37'323'520);
  EXPECT_EQ(parameters(load({"small-deepseek", "baseline"})), 38'311'680);
  EXPECT_EQ(parameters(load({"small-deepseek"})), 38'340'352);
  EXPECT_EQ(parameters(load({"qwen3-2b"})), 2'023'004'288);
  EXPECT_EQ(parameters(load({"paper-8b", "baseline"})), 7'983'549'952);
  EXPECT_EQ(parameters(load({"paper-8b"})), 7'986'990'592);
  EXPECT_EQ(parameters(load({"qwen3", "baseline"})), 30'532'122'624);  // same as the public model
}

// The vocabulary comes from the data: 4096 rows of embedding and output layer add 1,048,576 parameters.
TEST(Configs, StudyModels) {
  EXPECT_EQ(parameters(load({"study-deepseek", "baseline"})) + 2 * 4096 * 128, 7'869'056);
  for (const char* base : {"study-deepseek", "study-qwen3"}) {
    const Config c = load({base});
    const auto stages = stage_of_layers(moe_layers(c.model), c.router);
    // The largest window of the paper's variants is smaller than the history of several routers.
    int64_t truncated = 0;
    for (int64_t l = 1; l <= moe_layers(c.model); ++l)
      truncated +=
          visible_layers(l, stages, c.router) != visible_layers(l, stages, load({base, "mask10"}).router);
    EXPECT_EQ(truncated, 5);
  }
}

TEST(Configs, PaperModelMatchesPaper) {
  const Config c = load({"paper-8b"});
  EXPECT_EQ(c.model.num_hidden_layers, 30);
  EXPECT_EQ(c.model.hidden_size, 1024);
  EXPECT_EQ(c.model.num_attention_heads, 16);
  EXPECT_EQ(c.model.q_lora_rank, 512);
  EXPECT_EQ(c.model.num_experts, 128);
  EXPECT_EQ(c.model.moe_intermediate_size, 640);
  EXPECT_EQ(c.model.num_experts_per_tok, 4);
  EXPECT_EQ(c.optim.lr, 2e-3);
  EXPECT_EQ(c.optim.min_lr, 5e-5);
  EXPECT_EQ(c.train.sequence, 4096);
  EXPECT_EQ(c.train.global_batch, 1024);
  EXPECT_EQ(c.train.steps, 25000);
  EXPECT_EQ(c.router.kind, "hero");
  EXPECT_EQ(c.router.stages, 2);
}

}  // namespace configs_test
}  // namespace hero
