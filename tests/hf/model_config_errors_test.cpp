// Error messages of parse_model_config.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hf/model_config.h"
#include "hf/temporary_folder.h"
#include "io/error.h"

namespace hero {
namespace model_config_errors_test {

using nlohmann::json;
using test::error_of;

enum class Base { qwen3, deepseek };

json valid_config(Base base) {
  Config c;
  c.model.vocab_size = 512;
  c.router.kind = "hero";
  c.router.stages = 2;
  if (base == Base::deepseek) {
    c.model.model_type = ModelType::kDeepseekV3;
    c.model.num_key_value_heads = c.model.num_attention_heads;
    c.model.n_shared_experts = 1;
    c.model.scoring_func = ScoringFunc::kSigmoid;
  }
  return json::parse(model_config_json(c, -1));
}

std::string error_message(const std::string& text) {
  return error_of<UserError>([&] { parse_model_config(text, "c.json"); });
}

struct Case {
  Base base;
  const char* patch;    // a JSON merge patch: null removes a key
  const char* message;  // after "c.json: "
};

constexpr Base Q = Base::qwen3, D = Base::deepseek;
const char* const kUnknown = "expected no such key: it may select an unsupported feature";

const Case kCases[] = {
    // types
    {Q, R"({"hidden_size": null})", "hidden_size: found nothing, expected an integer below 2^53"},
    {Q, R"({"hidden_size": "64"})", "hidden_size: found \"64\", expected an integer below 2^53"},
    {Q, R"({"hidden_size": 64.0})", "hidden_size: found 64.0, expected an integer below 2^53"},
    {Q, R"({"hidden_size": true})", "hidden_size: found true, expected an integer below 2^53"},
    {Q, R"({"hidden_size": 9007199254740992})",
     "hidden_size: found 9007199254740992, expected an integer below 2^53"},
    {Q, R"({"hidden_size": -9007199254740992})",
     "hidden_size: found -9007199254740992, expected an integer below 2^53"},
    {Q, R"({"rms_norm_eps": "1e-6"})", "rms_norm_eps: found \"1e-6\", expected a number"},
    {Q, R"({"tie_word_embeddings": 0})", "tie_word_embeddings: found 0, expected true or false"},
    {Q, R"({"mlp_only_layers": 3})", "mlp_only_layers: found 3, expected a list of integers"},
    {Q, R"({"mlp_only_layers": [0.5]})", "mlp_only_layers: found [0.5], expected a list of integers"},
    {Q, R"({"torch_dtype": 16})", "torch_dtype: found 16, expected a string"},
    {Q, R"({"eos_token_id": "</s>"})",
     "eos_token_id: found \"</s>\", expected an integer or a list of integers"},
    {D, R"({"routed_scaling_factor": null})", "routed_scaling_factor: found nothing, expected a number"},
    // model type
    {Q, R"({"model_type": null})", "model_type: found nothing, expected a string"},
    {Q, R"({"model_type": "llama"})",
     "model_type: found \"llama\", expected \"qwen3_moe\", \"deepseek_v3\", \"olmoe\" or \"mixtral\""},
    // unsupported features
    {Q, R"({"hidden_act": "gelu"})",
     "hidden_act: found \"gelu\", expected \"silu\": other activations are not supported"},
    {Q, R"({"attention_bias": true})",
     "attention_bias: found true, expected false: attention biases are not supported"},
    {Q, R"({"attention_dropout": 0.1})",
     "attention_dropout: found 0.1, expected 0.0: dropout is not supported"},
    {Q, R"({"quantization_config": {"bits": 4}})",
     "quantization_config: found {\"bits\":4}, expected nothing: quantized weights are not supported"},
    {Q, R"({"partial_rotary_factor": 0.5})",
     "partial_rotary_factor: found 0.5, expected 1.0: partial rotary embeddings are not supported"},
    {Q, R"({"use_sliding_window": true})",
     "use_sliding_window: found true, expected false: sliding windows are not supported"},
    {D, R"({"topk_method": "greedy"})",
     "topk_method: found \"greedy\", expected \"noaux_tc\": other top-k methods are not supported"},
    {D, R"({"moe_layer_freq": 2})",
     "moe_layer_freq: found 2, expected 1: other MoE layer frequencies are not supported"},
    {Q, R"({"dtype": "int8"})", "dtype: found \"int8\", expected bfloat16, float16, float32 or float64"},
    {Q, R"({"torch_dtype": "int8"})",
     "torch_dtype: found \"int8\", expected bfloat16, float16, float32 or float64"},
    {D, R"({"scoring_func": "tanh"})", "scoring_func: found \"tanh\", expected sigmoid or softmax"},
    // conflicting duplicates
    {Q, R"({"num_local_experts": 16})", "num_local_experts: found 16, expected 32: must equal num_experts"},
    {D, R"({"num_local_experts": 16})",
     "num_local_experts: found 16, expected 32: must equal n_routed_experts"},
    {D, R"({"num_key_value_heads": 4})",
     "num_key_value_heads: found 4, expected 8: multi-head latent attention has one key per query head"},
    {D, R"({"head_dim": 32})", "head_dim: found 32, expected 16: must equal qk_rope_head_dim"},
    {D, R"({"qk_head_dim": 32})",
     "qk_head_dim: found 32, expected 48: the sum of qk_nope_head_dim and qk_rope_head_dim"},
    {D, R"({"output_router_logits": 3})",
     "output_router_logits: found 3, expected false: must be true or false"},
    // RoPE
    {Q, R"({"rope_parameters": {}, "rope_scaling": {}})",
     "rope_scaling: found {}, expected nothing: rope_parameters is already set"},
    {Q, R"({"rope_scaling": [1]})", "rope_scaling: found [1], expected an object"},
    {Q, R"({"rope_scaling": {"rope_type": "llama3"}})",
     "rope_scaling: rope_type: found \"llama3\", expected \"default\" or \"yarn\""},
    {Q, R"({"rope_scaling": {"type": "linear"}})",
     "rope_scaling: type: found \"linear\", expected \"default\" or \"yarn\""},
    {D, R"({"rope_scaling": {"type": "yarn", "mscale_all_dim": 1}})",
     "rope_scaling: factor: found nothing, expected a number"},
    {Q, R"({"rope_parameters": {"rope_type": "yarn", "factor": 0}})",
     "model.rope_scaling.factor: found 0.0, expected a finite number above 0"},
    {Q, R"({"rope_parameters": {"rope_type": "yarn", "factor": 2, "beta_fast": 0.5}})",
     "model.rope_scaling.beta_slow: found 1.0, expected at most model.rope_scaling.beta_fast = 0.5"},
    // routing history
    {Q, R"({"hero_router": [0]})", "hero_router: found [0], expected an object"},
    {Q, R"({"hero_router": {"window": 0}})",
     "hero_router: window: found 0, expected null or an integer of at least 1"},
    {Q, R"({"hero_router": {"window": "all"}})",
     "hero_router: window: found \"all\", expected an integer below 2^53"},
    {Q, R"({"hero_router": {"history": "all"}})",
     "hero_router: history: found \"all\", expected \"stage\" or \"global\""},
    {Q, R"({"hero_router": {"stages": [0, 0, 1]}})",
     "hero_router: stages: found [0,0,1], expected one stage index for each of the 8 MoE layers"},
    {Q, R"({"hero_router": {"stages": [0, 0, 0, 0, 2, 2, 2, 2]}})",
     "hero_router: stages: found [0,0,0,0,2,2,2,2], expected stage indices "
     "that start at 0 and increase by at most 1"},
    {Q, R"({"hero_router": {"stages": [0, 0, 1, 1, 0, 0, 1, 1]}})",
     "hero_router: stages: found [0,0,1,1,0,0,1,1], expected stage indices "
     "that start at 0 and increase by at most 1"},
    {Q, R"({"hero_router": {"stages": [1, 1, 1, 1, 1, 1, 1, 1]}})",
     "hero_router: stages: found [1,1,1,1,1,1,1,1], expected stage indices "
     "that start at 0 and increase by at most 1"},
    {Q, R"({"hero_router": {"eps": -1}})", "router.eps: found -1.0, expected a finite number of at least 0"},
    // sizes
    {Q, R"({"vocab_size": 0})", "vocab_size: found 0, expected an integer from 1"},
    {Q, R"({"hidden_size": -64})", "model.hidden_size: found -64, expected an integer from 1 to 2147483647"},
    {Q, R"({"moe_intermediate_size": 2147483648})",
     "model.moe_intermediate_size: found 2147483648, expected an integer from 1 to 2147483647"},
    {Q, R"({"num_hidden_layers": 65536})",
     "model.num_hidden_layers: found 65536, expected an integer from 1 to 65535"},
    {Q, R"({"rope_theta": 0})", "model.rope_theta: found 0.0, expected a finite number above 0"},
    // contradictions
    {Q, R"({"num_experts_per_tok": 33})",
     "model.num_experts_per_tok: found 33, expected at most model.num_experts = 32"},
    {Q, R"({"num_key_value_heads": 3})",
     "model.num_attention_heads: found 8, expected a multiple of model.num_key_value_heads = 3"},
    {Q, R"({"head_dim": 15})",
     "model.head_dim: found 15, expected an even number: RoPE rotates pairs of dimensions"},
    {Q, R"({"mlp_only_layers": [8]})",
     "model.mlp_only_layers: found [8], expected layer indices below model.num_hidden_layers = 8"},
    {Q, R"({"decoder_sparse_step": 9})",
     "model.decoder_sparse_step: found 9, expected at least one MoE layer among model.num_hidden_layers = 8"},
    {D, R"({"n_group": 3})", "model.num_experts: found 32, expected a multiple of model.n_group = 3"},
    {D, R"({"topk_group": 2})", "model.topk_group: found 2, expected at most model.n_group = 1"},
    {D, R"({"n_group": 16})",
     "model.num_experts_per_tok: found 4, expected at most 2, the number of experts in model.topk_group = 1 "
     "groups"},
    {D, R"({"qk_rope_head_dim": 7})",
     "model.qk_rope_head_dim: found 7, expected an even number: RoPE rotates pairs of dimensions"},
    {D, R"({"first_k_dense_replace": 8})",
     "model.first_k_dense_replace: found 8, expected less than model.num_hidden_layers = 8"},
};

TEST(ModelConfigErrors, NameKeyFoundAndExpectedValue) {
  for (const auto& [base, patch, message] : kCases) {
    auto config = valid_config(base);
    config.merge_patch(json::parse(patch));
    EXPECT_EQ(error_message(config.dump()), std::string("c.json: ") + message) << patch;
  }
}

TEST(ModelConfigErrors, UnknownKeys) {
  auto config = valid_config(Q);
  config["logit\nscale"] = 2;
  EXPECT_EQ(error_message(config.dump()), std::string("c.json: logit scale: found 2, ") + kUnknown);
  config = valid_config(D);
  config["hero_router"]["tau"] = {1, 2};
  EXPECT_EQ(error_message(config.dump()), std::string("c.json: hero_router: tau: found [1,2], ") + kUnknown);
  config = valid_config(Q);
  config["rope_parameters"] = {{"rope_type", "default"}, {"factor", 4}};
  EXPECT_EQ(error_message(config.dump()),
            std::string("c.json: rope_parameters: factor: found 4, ") + kUnknown);
  config["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 4}, {"low_freq_factor", 1}};
  EXPECT_EQ(error_message(config.dump()),
            std::string("c.json: rope_parameters: low_freq_factor: found 1, ") + kUnknown);
}

TEST(ModelConfigErrors, InvalidJson) {
  EXPECT_EQ(error_message(""), "c.json: byte 0: found invalid JSON, expected one JSON value");
  EXPECT_EQ(error_message("{\"a\": 1,}"), "c.json: byte 8: found invalid JSON, expected one JSON value");
  EXPECT_EQ(error_message("{} {}"), "c.json: byte 3: found invalid JSON, expected one JSON value");
  EXPECT_EQ(error_message("{\"rms_norm_eps\": NaN}"),
            "c.json: byte 17: found invalid JSON, expected one JSON value");
  EXPECT_EQ(error_message("[1, 2]"), "c.json: found [1,2], expected a model configuration: a JSON object");
  EXPECT_EQ(error_message(R"({"a": {"b": 1, "b": 2}})"),
            "c.json: entry \"b\" is a duplicate key, expected unique keys");
  EXPECT_EQ(error_message(R"({"rms_norm_eps": 1e400})"),
            "c.json: found number '1e400', expected a value in the range of a double");
  EXPECT_EQ(error_message(R"({"a": )" + std::string(101, '[') + std::string(101, ']') + "}"),
            "c.json: found values nested deeper than 100 levels, expected at most 100 levels");
}

TEST(ModelConfigErrors, LongValuesAreTruncated) {
  auto config = valid_config(Q);
  config["mlp_only_layers"] = std::vector<int64_t>(100'000, 7);
  config["mlp_only_layers"].push_back(8);
  EXPECT_EQ(error_message(config.dump()),
            "c.json: model.mlp_only_layers: found [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, "
            "7,..., expected layer indices below model.num_hidden_layers = 8");
  config = valid_config(Q);
  config["model_type"] = std::string(1000, 'x');
  EXPECT_LT(error_message(config.dump()).size(), 200u);
}

TEST(ModelConfigErrors, MissingFiles) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(error_of<UserError>([&] { read_model_config(folder / "config.json"); }),
            (folder / "config.json").string() + ": no such file");
  EXPECT_EQ(error_of<UserError>([&] { read_model_config(folder.path()); }),
            folder.path().string() + ": found a folder, expected a file");
}

}  // namespace model_config_errors_test
}  // namespace hero
