// Warnings name non-default options without effect, and no others.
#include "config/warnings.h"

#include <gtest/gtest.h>

#include <functional>

namespace hero {
namespace warnings_test {

using Change = std::function<void(Config&)>;

std::vector<std::string> found(const Change& change, int64_t ranks = 1, bool cuda = false) {
  Config config;
  change(config);
  return options_without_effect(config, ranks, cuda);
}

void expect(const Change& change, const std::vector<std::string>& lines) { EXPECT_EQ(found(change), lines); }

constexpr auto kNone = [](Config&) {};

TEST(Warnings, NoneForDefaults) {
  expect(kNone, {});
  for (const char* kind : {"baseline", "hero"}) {
    for (const auto type :
         {ModelType::kQwen3Moe, ModelType::kDeepseekV3, ModelType::kOlmoe, ModelType::kMixtral}) {
      const auto change = [&](Config& c) {
        c.router.kind = kind;
        c.model.model_type = type;
        c.model.num_key_value_heads = c.model.num_attention_heads;
      };
      expect(change, {});
    }
  }
}

TEST(Warnings, SizesThatTheKernelsDoNotSupport) {
  Config config;
  config.model.head_dim = 24;
  config.model.hidden_size = 100;
  config.model.intermediate_size = 250;  // no dense layers
  config.model.v_head_dim = 24;          // of the other architecture
  config.train.dtype = Dtype::kFp32;
  EXPECT_EQ(sizes_without_kernels(config, /*cuda=*/false), std::vector<std::string>());
  config.train.dtype = Dtype::kBf16;
  EXPECT_EQ(sizes_without_kernels(config, /*cuda=*/true), std::vector<std::string>());
  const std::string why =
      " is not a multiple of 16: PyTorch's operators, which are slower, run instead of ours";
  EXPECT_EQ(sizes_without_kernels(config, /*cuda=*/false),
            (std::vector<std::string>{"model.hidden_size = 100" + why, "model.head_dim = 24" + why}));
  config.model.decoder_sparse_step = 2;
  config.model.hidden_size = 96;
  config.model.head_dim = 32;
  EXPECT_EQ(sizes_without_kernels(config, /*cuda=*/false),
            (std::vector<std::string>{"model.intermediate_size = 250" + why}));
}

TEST(Warnings, RouterStagesOfOneLayer) {
  const std::string why = " has no effect: each router stage has one MoE layer";
  const auto single = [](Config& c) {
    c.router.kind = "hero";
    c.router.stages = c.model.num_hidden_layers = 4;
    c.router.window = 2;
    c.router.scale = false;
    c.router.eps = 0.3;
    c.router.init = RouterInit::kZero;
    c.optim.history_lr = 2;
  };
  const auto summary = [](int stages, const std::string& kind) {
    return "router.stages = " + std::to_string(stages) + ": each router stage has one MoE layer, so with " +
           "router.kind = \"" + kind + "\" no layer reads an earlier one";
  };
  expect(single, {"router.window = 2" + why, "router.scale = false" + why, "router.eps = 0.3" + why,
                  "optim.history_lr = 2.0" + why, summary(4, "hero")});
  const auto with = [&](const Change& change) {
    return [=](Config& c) {
      single(c);
      change(c);
    };
  };
  const std::string unscaled = "router.eps = 0.3 has no effect: router.scale = false";
  expect(with([](Config& c) { c.router.history = HistoryScope::kGlobal; }),
         {"router.stages = 4 has no effect: router.history = \"global\"", unscaled});
  const std::string wide = "router.window = 2 has no effect: a layer sees at most 1 of the earlier layers";
  expect(with([](Config& c) { c.router.stages = 3; }), {wide, unscaled});
  // A module is in the last stage.
  const auto modules = found(with([](Config& c) {
    c.model.model_type = ModelType::kDeepseekV3;
    c.model.num_key_value_heads = c.model.num_attention_heads;
    c.model.num_nextn_predict_layers = 1;
  }));
  EXPECT_EQ(modules, (std::vector<std::string>{wide, unscaled}));
  expect(
      [](Config& c) {
        c.router.kind = "rmoe";
        c.router.stage_sizes = {1, 1};
        c.router.stages = c.model.num_hidden_layers = 2;
        c.router.detach = false;
      },
      {"router.detach = false" + why, summary(2, "rmoe")});
}

TEST(Warnings, HistoryOptionsOfBaseline) {
  const std::string why = " has no effect: router.kind = \"baseline\" reads no history";
  const auto change = [](Config& c) {
    c.router.window = 3;
    c.router.scale = false;
    c.router.eps = 0.5;
    c.router.init = RouterInit::kZero;
    c.router.detach = false;
    c.router.history = HistoryScope::kGlobal;
    c.router.stages = 2;
    c.router.stage_sizes = {3, 5};
  };
  expect(change,
         {"router.window = 3" + why, "router.scale = false" + why, "router.eps = 0.5" + why,
          "router.init = \"zero\"" + why, "router.detach = false" + why, "router.history = \"global\"" + why,
          "router.stages = 2" + why, "router.stage_sizes = [3, 5]" + why});
  expect(
      [&](Config& c) {
        change(c);
        c.router.kind = "hero";
        c.router.scale = true;
      },
      {"router.stages = 2 has no effect: router.history = \"global\"",
       "router.stage_sizes = [3, 5] has no effect: router.history = \"global\""});
  expect([](Config& c) { c.router.stages = 2, c.parallel.pipeline = 2; }, {});
  expect([](Config& c) { c.router.stages = 2, c.router.coupling_loss = 0.1; }, {"router.stages = 2" + why});
}

TEST(Warnings, VisibleLayers) {
  const auto hero = [](Config& c) { c.router.kind = "hero", c.model.num_hidden_layers = 8; };
  const auto with = [&](const Change& more) { return [=](Config& c) { hero(c), more(c); }; };
  const auto global = [](Config& c) { c.router.history = HistoryScope::kGlobal; };
  const auto two_stages = [](Config& c) { c.router.stages = 2; };
  expect(with(global), {"router.history = \"global\" has no effect: the model has one router stage"});
  expect(with([&](Config& c) { two_stages(c), global(c); }),
         {"router.stages = 2 has no effect: router.history = \"global\""});
  expect(with([&](Config& c) { two_stages(c), global(c), c.parallel.pipeline = 2; }), {});
  expect(with([](Config& c) { c.router.window = 7; }),
         {"router.window = 7 has no effect: a layer sees at most 7 of the earlier layers"});
  expect(with([](Config& c) { c.router.window = 6; }), {});
  expect(with([&](Config& c) { two_stages(c), c.router.window = 3; }),
         {"router.window = 3 has no effect: a layer sees at most 3 of the earlier layers"});
  expect(with([&](Config& c) { two_stages(c), c.router.window = 2; }), {});
}

TEST(Warnings, Validation) {
  expect([](Config& c) { c.eval.batches = 2, c.eval.data = {"a", "b=c"}; },
         {"eval.batches = 2 has no effect: eval.every = 0",
          "eval.data = [\"a\", \"b=c\"] has no effect: eval.every = 0"});
  expect([](Config& c) { c.eval.every = 5, c.eval.batches = 2, c.eval.data = {"a"}; }, {});
  expect(
      [](Config& c) { c.eval.every = 5, c.checkpoint.every = 0, c.checkpoint.keep_best = true; },
      {"checkpoint.keep_best = true has no effect: checkpoint.every = 0, only the last checkpoint is saved"});
}

TEST(Warnings, RouterOptionsDisabledByOthers) {
  expect([](Config& c) { c.router.kind = "hero", c.router.scale = false, c.router.eps = 0.5; },
         {"router.eps = 0.5 has no effect: router.scale = false"});
  expect([](Config& c) { c.router.balance = BalanceScope::kNone, c.router.balance_loss = 0.5; },
         {"router.balance_loss = 0.5 has no effect: router.balance = \"none\""});
  expect([](Config& c) { c.router.balance = BalanceScope::kGlobal, c.router.balance_loss = 0; },
         {"router.balance = \"global\" has no effect: router.balance_loss = 0.0"});
  expect([](Config& c) { c.router.dtype = RouterDtype::kFp32, c.train.dtype = Dtype::kFp64; },
         {"router.dtype = \"fp32\" has no effect: train.dtype = \"fp64\""});
  expect([](Config& c) { c.router.drop_policy = DropPolicy::kPosition; },
         {"router.drop_policy = \"position\" has no effect: router.capacity_factor and "
          "router.eval_capacity_factor are 0"});
  for (const bool training : {true, false}) {
    expect(
        [=](Config& c) {
          c.router.drop_policy = DropPolicy::kPosition;
          (training ? c.router.capacity_factor : c.router.eval_capacity_factor) = 1;
        },
        {});
  }
}

TEST(Warnings, OptionsOfTheOtherArchitecture) {
  expect(
      [](Config& c) {
        c.model.q_lora_rank = 8, c.model.kv_lora_rank = 8, c.model.qk_nope_head_dim = 8;
        c.model.qk_rope_head_dim = 8, c.model.v_head_dim = 8, c.model.rope_interleave = false;
      },
      {"model.q_lora_rank = 8 has no effect: model.model_type = \"qwen3_moe\"",
       "model.kv_lora_rank = 8 has no effect: model.model_type = \"qwen3_moe\"",
       "model.qk_nope_head_dim = 8 has no effect: model.model_type = \"qwen3_moe\"",
       "model.qk_rope_head_dim = 8 has no effect: model.model_type = \"qwen3_moe\"",
       "model.v_head_dim = 8 has no effect: model.model_type = \"qwen3_moe\"",
       "model.rope_interleave = false has no effect: model.model_type = \"qwen3_moe\""});
  expect(
      [](Config& c) {
        c.model.model_type = ModelType::kDeepseekV3;
        c.model.head_dim = 8, c.model.num_key_value_heads = 2;
      },
      {"model.head_dim = 8 has no effect: model.model_type = \"deepseek_v3\"",
       "model.num_key_value_heads = 2 has no effect: model.model_type = \"deepseek_v3\" has as many key "
       "heads "
       "as model.num_attention_heads"});
}

TEST(Warnings, RopeScalingAndTopkNormalization) {
  const auto yarn = [](Config& c) {
    c.model.rope_scaling = {.type = RopeType::kYarn,
                            .factor = 2,
                            .original_max_position_embeddings = 8,
                            .beta_fast = 3,
                            .beta_slow = 2,
                            .mscale = 0.5,
                            .mscale_all_dim = 0.5,
                            .truncate = false};
  };
  expect(yarn, {});
  const auto with = [&](const Change& more) { return [=](Config& c) { yarn(c), more(c); }; };
  EXPECT_EQ(found(with([](Config& c) { c.model.rope_scaling.type = RopeType::kDefault; })).size(), 7U);
  expect(with([](Config& c) { c.model.rope_scaling.attention_factor = 2; }),
         {"model.rope_scaling.mscale = 0.5 has no effect: model.rope_scaling.attention_factor = 2.0",
          "model.rope_scaling.mscale_all_dim = 0.5 has no effect: model.model_type = \"qwen3_moe\" and "
          "model.rope_scaling.attention_factor = 2.0"});
  expect(with([](Config& c) { c.model.rope_scaling.mscale_all_dim = 0; }),
         {"model.rope_scaling.mscale = 0.5 has no effect: model.rope_scaling.mscale_all_dim = 0.0"});
  expect(with([](Config& c) { c.model.rope_scaling.mscale = 0; }),
         {"model.rope_scaling.mscale_all_dim = 0.5 has no effect: model.model_type = \"qwen3_moe\" and "
          "model.rope_scaling.mscale = 0.0"});
  const auto one = found(with([](Config& c) { c.model.rope_scaling.factor = 1; }));
  EXPECT_EQ(one.size(), 7U);
  EXPECT_EQ(one.back(), "model.rope_scaling.type = \"yarn\" has no effect: model.rope_scaling.factor = 1.0");
  EXPECT_EQ(found(with([](Config& c) {
              c.model.rope_scaling.factor = 1, c.model.rope_scaling.attention_factor = 2;
            })).size(),
            6U);
  expect([](Config& c) { c.model.norm_topk_prob = false, c.model.norm_topk_eps = 0.5; },
         {"model.norm_topk_eps = 0.5 has no effect: model.norm_topk_prob = false"});
}

TEST(Warnings, OneExpertOfNormalizedWeight) {
  const std::string equal =
      "model.num_experts_per_tok = 1 and model.norm_topk_prob = true: all expert weights are equal";
  const auto one = [](Config& c) {
    c.model.num_experts_per_tok = 1, c.model.norm_topk_prob = true;
    c.router.drop_policy = DropPolicy::kPosition, c.router.capacity_factor = 1;
  };
  expect(one, {equal + ", so routers learn only from auxiliary losses",
               "router.drop_policy = \"position\" has no effect: " + equal});
  expect([&](Config& c) { one(c), c.model.num_experts_per_tok = 2; }, {});
  expect([&](Config& c) { one(c), c.model.norm_topk_prob = false; }, {});
  expect([&](Config& c) { one(c), c.model.norm_topk_eps = 0.5; }, {});
}

TEST(Warnings, MultiTokenPrediction) {
  const auto weight = [](Config& c) { c.train.mtp_loss = 0.5; };
  expect(weight, {"train.mtp_loss = 0.5 has no effect: model.num_nextn_predict_layers = 0"});
  expect(
      [&](Config& c) {
        weight(c), c.model.model_type = ModelType::kDeepseekV3, c.model.num_nextn_predict_layers = 1;
      },
      {});
}

TEST(Warnings, OptimizerOptions) {
  const auto muon = [](Config& c) { c.optim.muon_momentum = 0.9, c.optim.muon_router = true; };
  expect(muon, {"optim.muon_momentum = 0.9 has no effect: optim.kind = \"adamw\"",
                "optim.muon_router = true has no effect: optim.kind = \"adamw\""});
  expect([&](Config& c) { muon(c), c.optim.kind = OptimKind::kMuon; }, {});
  expect(
      [](Config& c) { c.optim.kind = OptimKind::kMuon, c.train.trainable = Trainable::kRouters; },
      {"optim.kind = \"muon\" has no effect: train.trainable = \"routers\" and optim.muon_router = false"});
  const auto routers = [&](Config& c) {
    c.optim.kind = OptimKind::kMuon, c.train.trainable = Trainable::kRouters;
    c.optim.muon_momentum = 0.9, c.optim.beta1 = 0.5;
  };
  const std::string frozen = " has no effect: train.trainable = \"routers\" and optim.muon_router = false";
  expect(routers, {"optim.kind = \"muon\"" + frozen, "optim.muon_momentum = 0.9" + frozen});
  const auto all_muon = [&](Config& c) { routers(c), c.optim.muon_router = true; };
  expect(all_muon, {"optim.beta1 = 0.5 has no effect: train.trainable = \"routers\", optim.kind = \"muon\" "
                    "and optim.muon_router = true"});
  expect([&](Config& c) { all_muon(c), c.router.kind = "rmoe"; }, {});  // the GRU has bias vectors
  const std::string why = " has no effect: router.kind = \"baseline\" reads no history";
  const auto history = [](Config& c) { c.optim.history_lr = 2, c.optim.history_weight_decay = 0; };
  expect(history, {"optim.history_lr = 2.0" + why, "optim.history_weight_decay = 0.0" + why});
  expect([&](Config& c) { history(c), c.router.kind = "hero"; }, {});
  expect([&](Config& c) { history(c), c.router.kind = "hero", c.optim.history_lr = 0; },
         {"optim.history_weight_decay = 0.0 has no effect: optim.history_lr = 0.0"});
}

TEST(Warnings, DecayOptions) {
  const auto decay = [](LrSchedule schedule) {
    return [=](Config& c) {
      c.optim.schedule = schedule;
      c.optim.min_lr = 0, c.optim.decay_steps = 100, c.optim.decay_shape = DecayShape::k1Sqrt;
    };
  };
  expect(decay(LrSchedule::kWsd), {});
  const std::string zero = "optim.decay_steps = 100: the learning rate is 0 from step 150 on";
  expect(decay(LrSchedule::kCosine),
         {zero, "optim.decay_shape = \"1-sqrt\" has no effect: optim.schedule = \"cosine\""});
  expect(decay(LrSchedule::kLinear),
         {zero, "optim.decay_shape = \"1-sqrt\" has no effect: optim.schedule = \"linear\""});
  const auto linear = [](double min_lr, int64_t steps) {
    return [=](Config& c) {
      c.optim.schedule = LrSchedule::kLinear, c.optim.decay_steps = 1, c.optim.warmup_steps = 0;
      c.optim.min_lr = min_lr, c.train.steps = steps;
    };
  };
  expect(linear(0, 2), {"optim.decay_steps = 1: the learning rate is 0 from step 1 on"});
  expect(linear(0, 1), {});  // only the last step, as in every decay to 0
  expect(linear(1e-5, 2), {});
  const std::string why = " has no effect: optim.schedule = \"constant\"";
  expect(decay(LrSchedule::kConstant), {"optim.min_lr = 0.0" + why, "optim.decay_steps = 100" + why,
                                        "optim.decay_shape = \"1-sqrt\"" + why});
  const std::string flat = " has no effect: optim.min_lr = 0.001 = optim.lr";
  expect([&](Config& c) { decay(LrSchedule::kWsd)(c), c.optim.min_lr = c.optim.lr; },
         {"optim.schedule = \"wsd\"" + flat, "optim.decay_steps = 100" + flat,
          "optim.decay_shape = \"1-sqrt\"" + flat});
  const std::string warmup = " has no effect: optim.warmup_steps = 9, all steps";
  expect([&](Config& c) { decay(LrSchedule::kLinear)(c), c.train.steps = c.optim.warmup_steps = 9; },
         {"optim.schedule = \"linear\"" + warmup, "optim.decay_steps = 100" + warmup,
          "optim.min_lr = 0.0" + warmup,
          "optim.decay_shape = \"1-sqrt\" has no effect: optim.schedule = "
          "\"linear\""});
  expect([&](Config& c) { decay(LrSchedule::kConstant)(c), c.train.steps = c.optim.warmup_steps = 9; },
         {"optim.schedule = \"constant\"" + warmup, "optim.decay_steps = 100" + warmup,
          "optim.min_lr = 0.0" + warmup, "optim.decay_shape = \"1-sqrt\"" + why});
}

TEST(Warnings, ParallelOptionsAndCudaGraphs) {
  const auto graph = [](Config& c) { c.train.cuda_graph = true; };
  EXPECT_EQ(found(graph, 1, true), std::vector<std::string>{});
  EXPECT_EQ(found(graph, 2, false),
            std::vector<std::string>{"train.cuda_graph = true has no effect: the device is the CPU"});
  EXPECT_EQ(found(graph, 2, true),
            std::vector<std::string>{"train.cuda_graph = true has no effect: the run has 2 ranks; "
                                     "communication is not captured"});
  const auto parallel = [](Config& c) {
    c.parallel.chunk_sizes = {8};
    c.parallel.history_top = 4;
    c.parallel.timeout = 5;
  };
  EXPECT_EQ(found(parallel),
            (std::vector<std::string>{"parallel.chunk_sizes = [8] has no effect: parallel.pipeline = 1",
                                      "parallel.history_top = 4 has no effect: parallel.pipeline = 1",
                                      "parallel.timeout = 5.0 has no effect: the run has one rank"}));
  EXPECT_EQ(found([&](Config& c) { parallel(c), c.parallel.pipeline = 2; }, 2),
            std::vector<std::string>{
                "parallel.history_top = 4 has no effect: router.kind = \"baseline\" reads no history"});
  EXPECT_EQ(found([&](Config& c) { parallel(c), c.parallel.pipeline = 2, c.router.kind = "hero"; }, 2),
            std::vector<std::string>{});
}

TEST(Warnings, OptionsMissingFromConfigJson) {
  Config c;
  EXPECT_EQ(options_missing_from_config_json(c, Dtype::kBf16), std::vector<std::string>{});
  c.router.eval_capacity_factor = 1.5;
  c.router.capacity_factor = 1.5;
  c.router.dtype = RouterDtype::kFp32;
  c.model.norm_topk_eps = 0.5;
  EXPECT_EQ(options_missing_from_config_json(c, Dtype::kFp32),
            (std::vector<std::string>{
                "model.norm_topk_eps = 0.5 has no key in config.json: transformers uses its own "
                "constant, and hero export rejects the model",
                "router.eval_capacity_factor = 1.5 has no key in config.json: an exported folder and "
                "transformers drop no tokens"}));
  c.model.norm_topk_prob = false;
  EXPECT_EQ(options_missing_from_config_json(c, Dtype::kBf16).back(),
            "router.dtype = \"fp32\" has no key in config.json: a model folder with bf16 weights computes "
            "its routers in bf16");
  EXPECT_EQ(options_missing_from_config_json(c, Dtype::kBf16).size(), 2U);
}

}  // namespace warnings_test
}  // namespace hero
