#include <gtest/gtest.h>

#include "config/config.h"
#include "config/failure.h"

namespace hero {
namespace check_test {

// Error message of check() for a valid configuration changed by `edit`.
template <class Edit>
std::string check_error(ModelType model_type, Edit edit) {
  Config config;
  config.model.model_type = model_type;
  edit(config);
  return failure([&] { check(config); });
}

template <class Edit>
std::string qwen3(Edit edit) {
  return check_error(ModelType::kQwen3Moe, edit);
}

template <class Edit>
std::string deepseek(Edit edit) {
  return check_error(ModelType::kDeepseekV3, edit);
}

TEST(Check, DefaultsAreValid) {
  EXPECT_EQ(qwen3([](Config&) {}), "");
  EXPECT_EQ(deepseek([](Config&) {}), "");
}

TEST(Check, BoundsOfSingleValues) {
  EXPECT_EQ(qwen3([](Config& c) { c.train.micro_batch = 0; }),
            "train.micro_batch: found 0, expected an integer from 1 to 2147483647");
  EXPECT_EQ(qwen3([](Config& c) { c.router.capacity_factor = -1; }),
            "router.capacity_factor: found -1.0, expected a finite number of at least 0");
  EXPECT_EQ(qwen3([](Config& c) { c.router.kind = "rnn"; }),
            "router.kind: found \"rnn\", expected one of baseline, hero, rmoe");
}

TEST(Check, Experts) {
  EXPECT_EQ(qwen3([](Config& c) { c.model.num_experts_per_tok = 33; }),
            "model.num_experts_per_tok: found 33, expected at most model.num_experts = 32");
  EXPECT_EQ(deepseek([](Config& c) { c.model.n_group = 5; }),
            "model.num_experts: found 32, expected a multiple of model.n_group = 5");
  EXPECT_EQ(deepseek([](Config& c) { c.model.topk_group = 2; }),
            "model.topk_group: found 2, expected at most model.n_group = 1");
  EXPECT_EQ(deepseek([](Config& c) { c.model.n_group = 32; }),
            "model.n_group: found 32, expected at least 2 experts per group with model.num_experts = 32: "
            "the two best experts determine the score of a group");
  EXPECT_EQ(deepseek([](Config& c) {
              c.model.n_group = 16;
              c.model.topk_group = 1;
            }),
            "model.num_experts_per_tok: found 4, expected at most 2, the number of experts in "
            "model.topk_group = 1 groups");
  EXPECT_EQ(deepseek([](Config& c) {
              c.model.n_group = 16;
              c.model.topk_group = 2;
              c.model.scoring_func = ScoringFunc::kSigmoid;
            }),
            "");
}

TEST(Check, Layers) {
  EXPECT_EQ(deepseek([](Config& c) { c.model.first_k_dense_replace = 8; }),
            "model.first_k_dense_replace: found 8, expected less than model.num_hidden_layers = 8");
  EXPECT_EQ(deepseek([](Config& c) { c.model.first_k_dense_replace = 7; }), "");
  EXPECT_EQ(qwen3([](Config& c) { c.router.stages = 9; }),
            "router.stages: found 9, expected at most the 8 MoE layers");
  EXPECT_EQ(deepseek([](Config& c) {
              c.model.first_k_dense_replace = 1;
              c.router.stages = 8;
            }),
            "router.stages: found 8, expected at most the 7 MoE layers");
  EXPECT_EQ(qwen3([](Config& c) {
              c.model.num_hidden_layers = 1;
              c.router.coupling_loss = 1e-3;
            }),
            "router.coupling_loss: found 0.001, expected 0: with one MoE layer there are no adjacent layers");
  EXPECT_EQ(deepseek([](Config& c) {
              c.model.num_hidden_layers = 1, c.model.num_nextn_predict_layers = 1;
              c.router.coupling_loss = 1e-3;
            }),
            "");
}

TEST(Check, MultiTokenPrediction) {
  EXPECT_EQ(deepseek([](Config& c) { c.model.num_nextn_predict_layers = 2; }), "");
  EXPECT_EQ(deepseek([](Config& c) { c.model.num_nextn_predict_layers = c.train.sequence = 8; }),
            "model.num_nextn_predict_layers: found 8, expected less than train.sequence = 8: the last module "
            "predicts the token that many positions after the next");
  EXPECT_EQ(deepseek([](Config& c) { c.model.num_nextn_predict_layers = 1, c.parallel.pipeline = 2; }), "");
}

TEST(Check, Attention) {
  EXPECT_EQ(qwen3([](Config& c) { c.model.num_key_value_heads = 3; }),
            "model.num_attention_heads: found 8, expected a multiple of model.num_key_value_heads = 3");
  EXPECT_EQ(deepseek([](Config& c) { c.model.num_key_value_heads = 3; }), "");
  EXPECT_EQ(qwen3([](Config& c) { c.model.head_dim = 31; }),
            "model.head_dim: found 31, expected an even number: RoPE rotates pairs of dimensions");
  EXPECT_EQ(deepseek([](Config& c) { c.model.qk_rope_head_dim = 15; }),
            "model.qk_rope_head_dim: found 15, expected an even number: RoPE rotates pairs of dimensions");
}

TEST(Check, OptionsOfDeepSeekOnly) {
  const std::string only = "; only model.model_type = \"deepseek_v3\" supports ";
  EXPECT_EQ(qwen3([](Config& c) { c.model.n_shared_experts = 1; }),
            "model.n_shared_experts: found 1, expected 0" + only + "shared experts");
  EXPECT_EQ(qwen3([](Config& c) { c.model.first_k_dense_replace = 1; }),
            "model.first_k_dense_replace: found 1, expected 0" + only + "leading dense layers");
  EXPECT_EQ(qwen3([](Config& c) { c.model.scoring_func = ScoringFunc::kSigmoid; }),
            "model.scoring_func: found \"sigmoid\", expected softmax" + only + "sigmoid scores");
  EXPECT_EQ(qwen3([](Config& c) { c.model.n_group = 2; }),
            "model.n_group: found 2, expected 1" + only + "expert groups");
  EXPECT_EQ(qwen3([](Config& c) { c.model.num_nextn_predict_layers = 1; }),
            "model.num_nextn_predict_layers: found 1, expected 0" + only + "multi-token prediction modules");
  EXPECT_EQ(qwen3([](Config& c) { c.model.routed_scaling_factor = 2.5; }),
            "model.routed_scaling_factor: found 2.5, expected 1" + only + "a scaling factor");
  EXPECT_EQ(qwen3([](Config& c) { c.router.bias_update_rate = 1e-3; }),
            "router.bias_update_rate: found 0.001, expected 0" + only + "an expert bias");
}

TEST(Check, Training) {
  EXPECT_EQ(qwen3([](Config& c) { c.train.global_batch = 6; }),
            "train.global_batch: found 6, expected a multiple of train.micro_batch = 4");
  EXPECT_EQ(qwen3([](Config& c) { c.train.sequence = 4097; }),
            "train.sequence: found 4097, expected at most model.max_position_embeddings = 4096");
  EXPECT_EQ(qwen3([](Config& c) { c.optim.min_lr = 2e-3; }),
            "optim.min_lr: found 0.002, expected at most optim.lr = 0.001");
  EXPECT_EQ(qwen3([](Config& c) { c.optim.history_weight_decay = -1; }), "");
  EXPECT_EQ(
      qwen3([](Config& c) { c.optim.history_weight_decay = -0.5; }),
      "optim.history_weight_decay: found -0.5, expected -1 (optim.weight_decay) or a number of at least 0");
  EXPECT_EQ(qwen3([](Config& c) { c.optim.warmup_steps = 1001; }),
            "optim.warmup_steps: found 1001, expected at most train.steps = 1000");
}

TEST(Check, DecayOfTheLearningRate) {
  const auto with = [](LrSchedule schedule, int64_t decay_steps) {
    return qwen3([=](Config& c) {
      c.optim.schedule = schedule;
      c.optim.decay_steps = decay_steps;
      c.optim.warmup_steps = 100;
    });
  };
  EXPECT_EQ(with(LrSchedule::kWsd, 0), "");
  EXPECT_EQ(with(LrSchedule::kWsd, 900), "");
  EXPECT_EQ(
      with(LrSchedule::kWsd, 901),
      "optim.decay_steps: found 901, expected at most 900, train.steps = 1000 minus optim.warmup_steps = "
      "100, with optim.schedule = \"wsd\"");
  // The run ends during the decay.
  EXPECT_EQ(with(LrSchedule::kCosine, 5000), "");
  EXPECT_EQ(with(LrSchedule::kLinear, 5000), "");
  EXPECT_EQ(qwen3([](Config& c) { c.optim.min_lr = 2e-3, c.optim.schedule = LrSchedule::kConstant; }), "");
}

TEST(Check, GradientThroughHistoryExcludesRecomputation) {
  EXPECT_EQ(qwen3([](Config& c) {
              c.router.detach = false;
              c.train.recompute = true;
            }),
            "router.detach: found false, expected true: gradient through the history is not supported with "
            "train.recompute = true");
  EXPECT_EQ(qwen3([](Config& c) { c.router.detach = false; }), "");
  EXPECT_EQ(qwen3([](Config& c) { c.train.recompute = true; }), "");
}

TEST(Check, BestCheckpointsNeedAValidation) {
  const auto keep = [](int64_t eval_every, int64_t checkpoint_every) {
    return qwen3([&](Config& c) {
      c.eval.every = eval_every;
      c.checkpoint.every = checkpoint_every;
      c.checkpoint.keep_best = true;
    });
  };
  EXPECT_EQ(keep(5, 20), "");
  EXPECT_EQ(keep(0, 20), "checkpoint.keep_best: found true, expected false with eval.every = 0");
  EXPECT_EQ(keep(15, 20),
            "checkpoint.every: found 20, expected a multiple of eval.every = 15 with checkpoint.keep_best = "
            "true: each checkpoint needs a validation");
}

TEST(Check, CudaGraphsNeedStaticShapesAndNoSampling) {
  const auto graph = [](auto change) {
    return qwen3([&](Config& c) {
      c.train.cuda_graph = true;
      change(c);
    });
  };
  EXPECT_EQ(graph([](Config&) {}), "");
  EXPECT_EQ(graph([](Config& c) { c.train.recompute = true; }),
            "train.cuda_graph: found true, expected false with train.recompute = true");
  EXPECT_EQ(graph([](Config& c) { c.train.dtype = Dtype::kFp64; }),
            "train.cuda_graph: found true, expected false with train.dtype = \"fp64\"");
  EXPECT_EQ(graph([](Config& c) { c.router.jitter = 0.1; }),
            "train.cuda_graph: found true, expected false with router.jitter = 0.1");
  EXPECT_EQ(graph([](Config& c) { c.router.capacity_factor = 1.5; }),
            "train.cuda_graph: found true, expected false with router.capacity_factor = 1.5");
  EXPECT_EQ(graph([](Config& c) { c.train.skip_nonfinite = 3; }),
            "train.cuda_graph: found true, expected false with train.skip_nonfinite = 3");
  EXPECT_EQ(graph([](Config& c) { c.train.spike_skip = 6; }),
            "train.cuda_graph: found true, expected false with train.spike_skip = 6.0");
  EXPECT_EQ(graph([](Config& c) { c.train.norms_every = 10; }),
            "train.cuda_graph: found true, expected false with train.norms_every = 10");
  EXPECT_EQ(graph([](Config& c) { c.train.loss_mask = true; }),
            "train.cuda_graph: found true, expected false with train.loss_mask = true");
  EXPECT_EQ(graph([](Config& c) { c.train.pack = Packing::kBestFit; }),
            "train.cuda_graph: found true, expected false with train.pack = \"best_fit\"");
  EXPECT_EQ(graph([](Config& c) { c.train.document_mask = true; }),
            "train.cuda_graph: found true, expected false with train.document_mask = true");
  EXPECT_EQ(graph([](Config& c) { c.train.document_positions = true; }),
            "train.cuda_graph: found true, expected false with train.document_positions = true");
}

TEST(Check, RoutersThatShareWeightsNeedWholeStagesOnARank) {
  const auto rmoe = [](auto change) {
    return qwen3([&](Config& c) {
      c.router.kind = "rmoe";
      c.parallel.pipeline = 2;
      change(c);
    });
  };
  const std::string error =
      "parallel.pipeline: found 2, expected model chunks that contain whole router stages with router.kind = "
      "\"rmoe\": the routers of a stage share weights (router.stages, parallel.chunk_sizes)";
  EXPECT_EQ(rmoe([](Config&) {}), error);
  EXPECT_EQ(rmoe([](Config& c) { c.router.stages = 2; }), "");
  EXPECT_EQ(rmoe([](Config& c) { c.router.stages = 3, c.parallel.chunk_sizes = {4, 4}; }), error);
  EXPECT_EQ(rmoe([](Config& c) { c.router.stages = 3, c.parallel.chunk_sizes = {3, 5}; }), "");
  EXPECT_EQ(rmoe([](Config& c) { c.parallel.pipeline = 1; }), "");
  EXPECT_EQ(rmoe([](Config& c) { c.model.mlp_only_layers = {0, 1}, c.parallel.chunk_sizes = {2, 6}; }), "");
  EXPECT_EQ(rmoe([](Config& c) { c.router.kind = "hero"; }), "");
}

TEST(Check, AllowedCombinations) {
  EXPECT_EQ(qwen3([](Config& c) { c.router.window = 3; }), "");  // a baseline ignores it
  EXPECT_EQ(qwen3([](Config& c) { c.train.dtype = Dtype::kFp64; }), "");
  EXPECT_EQ(qwen3([](Config& c) { c.router.capacity_factor = 1.25; }), "");
  EXPECT_EQ(qwen3([](Config& c) { c.model.vocab_size = 0; }), "");
}

}  // namespace check_test
}  // namespace hero
