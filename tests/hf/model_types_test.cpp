// OLMoE and Mixtral: the published models' configurations, and the keys that are rejected by name.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hf/model_config.h"
#include "hf/weight_shapes.h"
#include "io/error.h"

namespace hero {
namespace model_types_test {

using nlohmann::ordered_json;

const ordered_json kOlmoe = {{"architectures", {"OlmoeForCausalLM"}},
                             {"attention_bias", false},
                             {"attention_dropout", 0.0},
                             {"clip_qkv", nullptr},
                             {"eos_token_id", 50279},
                             {"hidden_act", "silu"},
                             {"hidden_size", 2048},
                             {"initializer_range", 0.02},
                             {"intermediate_size", 1024},
                             {"max_position_embeddings", 4096},
                             {"model_type", "olmoe"},
                             {"norm_topk_prob", false},
                             {"num_attention_heads", 16},
                             {"num_experts", 64},
                             {"num_experts_per_tok", 8},
                             {"num_hidden_layers", 16},
                             {"num_key_value_heads", 16},
                             {"output_router_logits", false},
                             {"pad_token_id", 1},
                             {"rope_scaling", nullptr},
                             {"rope_theta", 10000.0},
                             {"router_aux_loss_coef", 0.01},
                             {"tie_word_embeddings", false},
                             {"torch_dtype", "bfloat16"},
                             {"use_cache", true},
                             {"vocab_size", 50304}};
const ordered_json kMixtral = {{"architectures", {"MixtralForCausalLM"}},
                               {"attention_dropout", 0.0},
                               {"bos_token_id", 1},
                               {"eos_token_id", 2},
                               {"hidden_act", "silu"},
                               {"hidden_size", 4096},
                               {"initializer_range", 0.02},
                               {"intermediate_size", 14336},
                               {"max_position_embeddings", 32768},
                               {"model_type", "mixtral"},
                               {"num_attention_heads", 32},
                               {"num_experts_per_tok", 2},
                               {"num_hidden_layers", 32},
                               {"num_key_value_heads", 8},
                               {"num_local_experts", 8},
                               {"output_router_logits", false},
                               {"rms_norm_eps", 1e-05},
                               {"rope_theta", 1000000.0},
                               {"router_aux_loss_coef", 0.02},
                               {"sliding_window", nullptr},
                               {"tie_word_embeddings", false},
                               {"torch_dtype", "bfloat16"},
                               {"use_cache", true},
                               {"vocab_size", 32000}};

int64_t parameters(const ordered_json& published) {
  int64_t sum = 0;
  for_each_weight(parse_model_config(published.dump(), "config.json"),
                  [&](const std::string&, const std::vector<int64_t>& shape) {
                    int64_t count = 1;
                    for (const int64_t size : shape) count *= size;
                    sum += count;
                  });
  return sum;
}

std::string error(ordered_json published, const ordered_json& edit) {
  published.update(edit);
  try {
    parse_model_config(published.dump(), "config.json");
  } catch (const UserError& reason) {
    return reason.what();
  }
  return "";
}

TEST(ModelTypes, ParameterCountsOfPublishedModels) {
  EXPECT_EQ(parameters(kOlmoe), 6919161856);
  EXPECT_EQ(parameters(kMixtral), 46702792704);
}

TEST(ModelTypes, DefaultsOfTransformers) {
  auto text = kOlmoe;
  text.erase("rms_norm_eps"), text.erase("num_key_value_heads"), text.erase("norm_topk_prob");
  const ModelConfig olmoe = parse_model_config(text.dump(), "config.json").model;
  EXPECT_EQ(olmoe.rms_norm_eps, 1e-5);
  EXPECT_EQ(olmoe.num_key_value_heads, 16);
  EXPECT_EQ(olmoe.head_dim, 128);
  EXPECT_EQ(olmoe.moe_intermediate_size, 1024);
  EXPECT_FALSE(olmoe.norm_topk_prob);
  text = kMixtral;
  text.erase("rms_norm_eps"), text.erase("rope_theta");
  const ModelConfig mixtral = parse_model_config(text.dump(), "config.json").model;
  EXPECT_EQ(mixtral.rms_norm_eps, 1e-5);
  EXPECT_EQ(mixtral.rope_theta, 1e6);
  EXPECT_EQ(mixtral.num_experts, 8);
  EXPECT_TRUE(mixtral.norm_topk_prob);
}

TEST(ModelTypes, UnsupportedKeysAreNamed) {
  const auto names = [](const std::string& message, const std::string& text) {
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  names(error(kOlmoe, {{"clip_qkv", 8.0}}), "clip_qkv: found 8");
  names(error(kOlmoe, {{"head_dim", 64}}),
        "model.head_dim: found 64, expected model.hidden_size = 2048 divided by");
  names(error(kOlmoe, {{"decoder_sparse_step", 2}}), "decoder_sparse_step: found 2");
  names(error(kMixtral, {{"sliding_window", 4096}}), "sliding_window: found 4096");
  names(error(kMixtral, {{"router_jitter_noise", 0.1}}), "router_jitter_noise: found 0.1");
  names(error(kMixtral, {{"norm_topk_prob", false}}), "model.norm_topk_prob: found false, expected true");
}

}  // namespace model_types_test
}  // namespace hero
