// Round trips of configurations through config.json.
#include "hf/model_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "config/fields.h"
#include "config/router_kinds.h"

namespace hero {
namespace model_config_test {

namespace fs = std::filesystem;

Config round_trip(const Config& config) {
  return parse_model_config(model_config_json(config, /*eos=*/2), "config.json");
}

// Differences in the model or the router structure; baselines have no router structure.
std::vector<std::string> structural_differences(const Config& a, const Config& b) {
  return differences(
      a, b, [&](const Field& field) { return field.has(kFromModelFolder) && reads_option(a.router, field); });
}

// Every base configuration of the repository, with every overlay.
TEST(ModelConfig, RepositoryConfigsRoundTrip) {
  std::vector<std::string> bases, overlays;
  for (const auto& file : fs::directory_iterator(HERO_SOURCE_DIR "/configs")) {
    if (file.path().extension() != ".toml") continue;
    const Config config = load_config({file.path().string()}, {});
    const bool overlay = config.model.max_position_embeddings == Config().model.max_position_embeddings &&
                         config.model.num_experts == Config().model.num_experts;
    (overlay ? overlays : bases).push_back(file.path().string());
  }
  ASSERT_EQ(bases.size(), 10u);
  ASSERT_EQ(overlays.size(), 15u);
  overlays.push_back("");
  for (const std::string& base : bases) {
    for (const std::string& overlay : overlays) {
      auto config = load_config(overlay.empty() ? std::vector{base} : std::vector{base, overlay}, {});
      if (config.model.vocab_size == 0) config.model.vocab_size = 512;
      if (config.model.num_nextn_predict_layers > 0 && !config.model.is_deepseek()) continue;  // an error
      EXPECT_EQ(structural_differences(config, round_trip(config)), std::vector<std::string>())
          << base << " " << overlay;
      EXPECT_EQ(model_config_json(round_trip(config), 2), model_config_json(config, 2))
          << base << " " << overlay;
    }
  }
}

void qwen3(Config& c) {
  c.model.vocab_size = 512;
  c.router.kind = "hero";
}

void deepseek(Config& c) {
  qwen3(c);
  c.model.model_type = ModelType::kDeepseekV3;
  c.model.num_key_value_heads = c.model.num_attention_heads;
  c.model.q_lora_rank = 24;
  c.model.n_shared_experts = 1;
  c.model.first_k_dense_replace = 2;
  c.model.scoring_func = ScoringFunc::kSigmoid;
  c.model.routed_scaling_factor = 2.5;
  c.model.num_nextn_predict_layers = 2;
}

void yarn(Config& c) {
  c.model.rope_scaling = {.type = RopeType::kYarn,
                          .factor = 4.7,
                          .original_max_position_embeddings = 1000,
                          .beta_fast = 31.5,
                          .beta_slow = 1.25,
                          .mscale = 0.7,
                          .mscale_all_dim = 1.1,
                          .attention_factor = 1.3,
                          .truncate = false};
}

struct Variant {
  const char* name;
  std::vector<std::function<void(Config&)>> changes;
};

std::vector<Variant> variants() {
  return {
      {"qwen3", {qwen3}},
      {"deepseek", {deepseek}},
      {"baseline", {qwen3, [](auto& c) { c.router.kind = "baseline"; }}},
      {"window", {qwen3, [](auto& c) { c.router.window = 3; }}},
      {"two stages", {qwen3, [](auto& c) { c.router.stages = 2; }}},
      {"three stages", {qwen3, [](auto& c) { c.router.stages = 3; }}},
      {"custom stage sizes",
       {deepseek,
        [](auto& c) {
          c.router.stages = 3;
          c.router.stage_sizes = {1, 3, 2};
        }}},
      {"global", {deepseek, [](auto& c) { c.router.history = HistoryScope::kGlobal; }}},
      {"no scale", {qwen3, [](auto& c) { c.router.scale = false; }}},
      {"eps", {qwen3, [](auto& c) { c.router.eps = 1.0 / 3; }}},
      {"gradient through the history", {qwen3, [](auto& c) { c.router.detach = false; }}},
      {"yarn", {qwen3, yarn}},
      {"yarn with MLA", {deepseek, yarn}},
      {"yarn with defaults",
       {deepseek,
        [](auto& c) {
          c.model.rope_scaling.type = RopeType::kYarn;
          c.model.rope_scaling.factor = 2;
        }}},
      {"tied", {qwen3, [](auto& c) { c.model.tie_word_embeddings = true; }}},
      {"softmax", {deepseek, [](auto& c) { c.model.scoring_func = ScoringFunc::kSoftmax; }}},
      {"softmax without history",
       {deepseek,
        [](auto& c) {
          c.model.scoring_func = ScoringFunc::kSoftmax;
          c.router.kind = "baseline";
        }}},
      {"groups",
       {deepseek,
        [](auto& c) {
          c.model.n_group = 8;
          c.model.topk_group = 3;
        }}},
      {"dense layers by step and by index",
       {qwen3,
        [](auto& c) {
          c.model.decoder_sparse_step = 2;
          c.model.mlp_only_layers = {3, 0};
        }}},
      {"no query LoRA, no shared experts, non-interleaved RoPE",
       {deepseek,
        [](auto& c) {
          c.model.q_lora_rank = 0;
          c.model.n_shared_experts = 0;
          c.model.rope_interleave = false;
          c.model.norm_topk_prob = false;
        }}},
      {"many digits",
       {qwen3,
        [](auto& c) {
          c.model.rope_theta = 12345.678901234567;
          c.model.rms_norm_eps = 1.0 / 3e6;
          c.model.initializer_range = 0.1 + 0.2;
          c.model.max_position_embeddings = 2147483647;
          c.model.norm_topk_prob = false;
        }}},
  };
}

TEST(ModelConfig, VariantsRoundTrip) {
  for (const auto& [name, changes] : variants()) {
    Config config;
    for (const auto& change : changes) change(config);
    ASSERT_NO_THROW(check(config)) << name;
    EXPECT_EQ(structural_differences(config, round_trip(config)), std::vector<std::string>()) << name;
    EXPECT_EQ(model_config_json(round_trip(config), 2), model_config_json(config, 2)) << name;
  }
}

TEST(ModelConfig, DefaultStageSizesAreNotStored) {
  Config config;
  qwen3(config);
  config.router.stages = 3;
  config.router.stage_sizes = {3, 3, 2};
  EXPECT_EQ(structural_differences(config, round_trip(config)),
            std::vector<std::string>{"router.stage_sizes: [3, 3, 2] -> []"});
  EXPECT_EQ(stage_of_layers(8, round_trip(config).router), stage_of_layers(8, config.router));
}

TEST(ModelConfig, KeysOfOtherModelTypeAreSkipped) {
  Config config;
  deepseek(config);
  config.model.num_key_value_heads = 4;
  config.model.head_dim = 17;
  EXPECT_EQ(structural_differences(config, round_trip(config)),
            (std::vector<std::string>{"model.num_key_value_heads: 4 -> 8", "model.head_dim: 17 -> 32"}));
}

TEST(ModelConfig, NullIsFalseAsInTransformers) {
  Config config;
  deepseek(config);
  for (const std::string key : {"rope_interleave", "norm_topk_prob"}) {
    auto keys = nlohmann::json::parse(model_config_json(config, -1));
    for (const bool present : {true, false}) {
      if (present) {
        keys[key] = nullptr;
      } else {
        keys.erase(key);
      }
      const ModelConfig m = parse_model_config(keys.dump(), "f").model;
      EXPECT_EQ(key == "norm_topk_prob" ? m.norm_topk_prob : m.rope_interleave, !present) << key;
    }
  }
}

TEST(ModelConfig, DtypeSequenceLengthAndBalanceLossAreRead) {
  Config config;
  qwen3(config);
  config.model.max_position_embeddings = 100;
  EXPECT_EQ(parse_model_config(model_config_json(config, -1, "bfloat16"), "f").train.dtype, Dtype::kBf16);
  EXPECT_EQ(round_trip(config).train.dtype, Dtype::kFp32);
  EXPECT_EQ(round_trip(config).train.sequence, 100);
  EXPECT_EQ(round_trip(config).router.balance, BalanceScope::kNone);
  config.router.balance = BalanceScope::kPooled;
  config.router.balance_loss = 0.05;
  EXPECT_EQ(round_trip(config).router.balance, BalanceScope::kPooled);
  EXPECT_EQ(round_trip(config).router.balance_loss, 0.05);
}

TEST(ModelConfig, KeysMatchHuggingFace) {
  Config config;
  deepseek(config);
  config.router.window = 2;
  const auto j = nlohmann::json::parse(model_config_json(config, 7));
  EXPECT_EQ(j["architectures"][0], "HeroDeepseekV3ForCausalLM");
  EXPECT_EQ(j["n_routed_experts"], 32);
  EXPECT_FALSE(j.contains("num_experts"));
  EXPECT_EQ(j["num_key_value_heads"], 8);
  EXPECT_EQ(j["eos_token_id"], 7);
  EXPECT_EQ(j["hero_router"], nlohmann::json::parse(R"({"window": 2, "scale": true, "eps": 1e-06,
      "detach": true, "history": "stage", "stages": [0, 0, 0, 0, 0, 0]})"));
  config.router.kind = "baseline";
  const auto baseline = nlohmann::json::parse(model_config_json(config, -1));
  EXPECT_EQ(baseline["architectures"][0], "DeepseekV3ForCausalLM");
  EXPECT_TRUE(baseline["eos_token_id"].is_null());
  EXPECT_FALSE(baseline.contains("hero_router") || baseline.contains("auto_map"));
}

}  // namespace model_config_test
}  // namespace hero
