#include "config/fields.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <utility>

namespace hero {
namespace fields_test {

const Field& field(const std::vector<Field>& list, const std::string& key) {
  const Field* found = find_field(list, key);
  if (!found) throw std::out_of_range(key);
  return *found;
}

TEST(Fields, KeysAndAliasesAreUniqueAndValuesDistinct) {
  Config config;
  std::set<std::string> names;
  std::set<const void*> members;
  for (const Field& f : fields(config)) {
    EXPECT_TRUE(names.insert(f.key).second) << f.key;
    for (const std::string& alias : f.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
    std::visit(
        [&](auto value) {
          if constexpr (std::is_same_v<decltype(value), ChoiceRef>) {
            EXPECT_TRUE(members.insert(value.member).second) << f.key;
          } else {
            EXPECT_TRUE(members.insert(value).second) << f.key;
          }
        },
        f.value);
    EXPECT_FALSE(f.help.empty()) << f.key;
  }
}

TEST(Fields, KeyMapsToMember) {
  Config config;
  const std::vector<Field> list = fields(config);
  ASSERT_TRUE(assign(field(list, "router.window"), int64_t{3}));
  ASSERT_TRUE(assign(field(list, "optim.beta2"), 0.99));
  ASSERT_TRUE(assign(field(list, "train.recompute"), true));
  ASSERT_TRUE(assign(field(list, "model.scoring_func"), std::string("sigmoid")));
  EXPECT_EQ(config.router.window, 3);
  EXPECT_EQ(config.optim.beta2, 0.99);
  EXPECT_TRUE(config.train.recompute);
  EXPECT_EQ(config.model.scoring_func, ScoringFunc::kSigmoid);
}

TEST(Fields, DefaultsAreWithinBounds) {
  Config config;
  for (const Field& f : fields(config)) EXPECT_TRUE(assign(f, read(f))) << f.key;
}

TEST(Fields, AliasesMapToSameField) {
  Config config;
  const std::vector<Field> list = fields(config);
  EXPECT_EQ(find_field(list, "model.n_routed_experts"), find_field(list, "model.num_experts"));
  EXPECT_EQ(find_field(list, "model.num_local_experts"), find_field(list, "model.num_experts"));
  EXPECT_EQ(find_field(list, "model.experts"), nullptr);
}

TEST(Fields, RejectedValuesChangeNothing) {
  Config config;
  const std::vector<Field> list = fields(config);
  EXPECT_FALSE(assign(field(list, "train.steps"), int64_t{0}));
  EXPECT_FALSE(assign(field(list, "train.steps"), int64_t{2147483648}));
  EXPECT_FALSE(assign(field(list, "train.steps"), 5.0));
  EXPECT_FALSE(assign(field(list, "optim.lr"), 0.0));
  EXPECT_FALSE(assign(field(list, "optim.lr"), NAN));
  EXPECT_FALSE(assign(field(list, "optim.lr"), INFINITY));
  EXPECT_FALSE(assign(field(list, "optim.beta1"), 1.0));
  EXPECT_FALSE(assign(field(list, "router.jitter"), -0.1));
  EXPECT_FALSE(assign(field(list, "router.scale"), int64_t{1}));
  EXPECT_FALSE(assign(field(list, "router.kind"), std::string("Hero")));
  EXPECT_EQ(differences(config, Config()), std::vector<std::string>());
}

TEST(Fields, SeedHasLargerLimit) {
  Config config;
  const std::vector<Field> list = fields(config);
  EXPECT_TRUE(assign(field(list, "train.seed"), int64_t{9007199254740991}));
  EXPECT_FALSE(assign(field(list, "train.seed"), int64_t{9007199254740993}));
  EXPECT_EQ(config.train.seed, 9007199254740991);
}

TEST(Fields, NearestKey) {
  Config config;
  const std::vector<Field> list = fields(config);
  EXPECT_EQ(nearest_key(list, "router.windwo"), "router.window");
  EXPECT_EQ(nearest_key(list, "window"), "router.window");
  EXPECT_EQ(nearest_key(list, "train.weight_decay"), "optim.weight_decay");
  EXPECT_EQ(nearest_key(list, "model.n_routed_expert"), "model.n_routed_experts");
}

TEST(Fields, Literals) {
  EXPECT_EQ(literal(int64_t{-3}), "-3");
  EXPECT_EQ(literal(1.0), "1.0");
  EXPECT_EQ(literal(0.1), "0.1");
  EXPECT_EQ(literal(1e-20), "1e-20");
  EXPECT_EQ(literal(false), "false");
  EXPECT_EQ(literal(std::string("bf16")), "\"bf16\"");
}

TEST(Fields, ExpectedText) {
  Config config;
  const std::vector<Field> list = fields(config);
  EXPECT_EQ(expected(field(list, "router.window")), "an integer from 0 to 2147483647");
  EXPECT_EQ(expected(field(list, "optim.lr")), "a finite number above 0");
  EXPECT_EQ(expected(field(list, "optim.min_lr")), "a finite number of at least 0");
  EXPECT_EQ(expected(field(list, "optim.beta1")), "a finite number of at least 0 and below 1");
  EXPECT_EQ(expected(field(list, "router.scale")), "true or false");
  EXPECT_EQ(expected(field(list, "router.kind")), "one of baseline, hero, rmoe");
}

using Keys = std::vector<std::string>;

TEST(FieldAttributes, EveryOptionIsFixedOnResumeOrMayChange) {
  Config config;
  for (const Field& f : fields(config)) EXPECT_NE(f.has(kFixedOnResume), f.has(kMayChangeOnResume)) << f.key;
  EXPECT_EQ(keys_with(kMayChangeOnResume), (Keys{"train.steps",
                                                 "train.device",
                                                 "train.cuda_graph",
                                                 "train.threads",
                                                 "train.routing_every",
                                                 "train.skip_nonfinite",
                                                 "train.spike_skip",
                                                 "train.norms_every",
                                                 "train.log_every",
                                                 "data.phase",
                                                 "optim.lr",
                                                 "optim.min_lr",
                                                 "optim.warmup_steps",
                                                 "optim.beta1",
                                                 "optim.beta2",
                                                 "optim.eps",
                                                 "optim.weight_decay",
                                                 "optim.clip_norm",
                                                 "optim.muon_momentum",
                                                 "optim.router_lr",
                                                 "optim.history_lr",
                                                 "optim.history_weight_decay",
                                                 "optim.schedule",
                                                 "optim.decay_steps",
                                                 "optim.decay_shape",
                                                 "optim.offload_folder",
                                                 "eval.every",
                                                 "eval.batches",
                                                 "eval.data",
                                                 "checkpoint.every",
                                                 "checkpoint.keep",
                                                 "checkpoint.asynchronous",
                                                 "checkpoint.keep_best",
                                                 "parallel.data",
                                                 "parallel.pipeline",
                                                 "parallel.expert",
                                                 "parallel.chunks",
                                                 "parallel.chunk_sizes",
                                                 "parallel.schedule",
                                                 "parallel.timeout"}));
}

TEST(FieldAttributes, RequireEachOther) {
  constexpr std::pair<uint32_t, uint32_t> kRequired[] = {{kFromModelFolder, kFixedOnResume},
                                                         {kMustMatchWeights, kFromModelFolder},
                                                         {kMayDifferBetweenRanks, kMayChangeOnResume},
                                                         {kMayDifferInStudy, kMayChangeOnResume},
                                                         {kSetsChunks, kHistoryOnly}};
  Config config;
  for (const Field& f : fields(config)) {
    for (const auto& [attribute, required] : kRequired)
      EXPECT_TRUE(!f.has(attribute) || f.has(required)) << f.key << ": " << attribute << ", " << required;
    EXPECT_FALSE(f.has(kGroupedQueryOnly | kDeepseekOnly)) << f.key;
  }
}

TEST(FieldAttributes, RanksAndStudies) {
  EXPECT_EQ(keys_with(kMayDifferBetweenRanks), Keys{"train.threads"});
  EXPECT_EQ(keys_with(kMayDifferInStudy),
            (Keys{"train.device", "train.threads", "optim.offload_folder", "checkpoint.every",
                  "checkpoint.keep", "checkpoint.asynchronous", "checkpoint.keep_best"}));
}

TEST(FieldAttributes, ModelFolders) {
  const std::set<std::string> router = {"router.kind",  "router.state_size", "router.window",
                                        "router.scale", "router.stages",     "router.stage_sizes",
                                        "router.eps",   "router.detach",     "router.history"};
  Config config;
  for (const Field& f : fields(config))
    EXPECT_EQ(f.has(kFromModelFolder), f.key.starts_with("model.") || router.contains(f.key)) << f.key;
  EXPECT_EQ(
      keys_with(kFromModelFolder, kMustMatchWeights),
      (Keys{"model.rope_scaling.type", "model.rope_scaling.factor",
            "model.rope_scaling.original_max_position_embeddings", "model.rope_scaling.beta_fast",
            "model.rope_scaling.beta_slow", "model.rope_scaling.mscale", "model.rope_scaling.mscale_all_dim",
            "model.rope_scaling.attention_factor", "model.rope_scaling.truncate",
            "model.max_position_embeddings", "model.norm_topk_eps", "model.initializer_range"}));
  EXPECT_EQ(keys_with(kFromModelFolder, kInConfigJson), Keys{"model.norm_topk_eps"});
  EXPECT_EQ(keys_with(kInConfigJson, kFromModelFolder), (Keys{"router.balance", "router.balance_loss"}));
}

TEST(FieldAttributes, OptionsReadOnlyWithAnother) {
  EXPECT_EQ(keys_with(kHistoryOnly),
            (Keys{"router.window", "router.scale", "router.stages", "router.stage_sizes", "router.eps",
                  "router.init", "router.detach", "router.history", "optim.history_lr",
                  "optim.history_weight_decay"}));
  EXPECT_EQ(keys_with(kMuonOnly), (Keys{"optim.muon_momentum", "optim.muon_router"}));
  EXPECT_EQ(keys_with(kSetsChunks), (Keys{"router.stages", "router.stage_sizes"}));
  EXPECT_EQ(keys_with(kPipelineOnly),
            (Keys{"parallel.chunks", "parallel.chunk_sizes", "parallel.schedule", "parallel.history_top"}));
  Config config;
  for (const Field& f : fields(config)) {
    EXPECT_EQ(f.has(kGroupedQueryOnly), f.help.find("(qwen3_moe") != std::string::npos) << f.key;
    EXPECT_EQ(f.has(kDeepseekOnly), f.help.ends_with("(deepseek_v3)")) << f.key;
    EXPECT_EQ(f.has(kYarnOnly),
              f.key.starts_with("model.rope_scaling.") && f.key != "model.rope_scaling.type")
        << f.key;
  }
}

TEST(FieldAttributes, SelectDifferencesAndCopies) {
  Config a, b;
  b.router.window = 3;
  b.train.steps = 7;
  b.model.hidden_size = 64;
  const auto fixed = [](const Field& f) { return f.has(kFixedOnResume); };
  EXPECT_EQ(differences(a, b, fixed), (Keys{"model.hidden_size: 256 -> 64", "router.window: 0 -> 3"}));
  copy_values(b, a, [](const Field& f) { return f.has(kHistoryOnly) || f.key == "train.steps"; });
  EXPECT_EQ(differences(a, b), Keys{"model.hidden_size: 256 -> 64"});
}

TEST(ConfigPredicates, FollowTheOptions) {
  Config c;
  EXPECT_FALSE(c.router.has_global_history());
  EXPECT_FALSE(c.model.is_deepseek() || c.model.has_sigmoid_scores() || c.model.rope_scaling.is_yarn());
  c.router.history = HistoryScope::kGlobal;
  c.model.model_type = ModelType::kDeepseekV3, c.model.scoring_func = ScoringFunc::kSigmoid,
  c.model.rope_scaling.type = RopeType::kYarn;
  EXPECT_TRUE(c.router.has_global_history());
  EXPECT_TRUE(c.model.is_deepseek() && c.model.has_sigmoid_scores() && c.model.rope_scaling.is_yarn());
}

}  // namespace fields_test
}  // namespace hero
