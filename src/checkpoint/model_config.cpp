#include "checkpoint/model_config.h"

#include <nlohmann/json.hpp>

namespace hero {

using json = nlohmann::ordered_json;

std::string model_config_json(const Config& config, int64_t eos) {
  const auto& m = config.model;
  const bool deepseek = m.model_type == "deepseek_v3";
  const auto token = eos >= 0 ? json(eos) : json(nullptr);
  json j = {{"architectures", {deepseek ? "DeepseekV3ForCausalLM" : "Qwen3MoeForCausalLM"}},
            {"model_type", m.model_type},
            {"vocab_size", m.vocab_size},
            {"hidden_size", m.hidden_size},
            {"intermediate_size", m.intermediate_size},
            {"moe_intermediate_size", m.moe_intermediate_size},
            {"num_hidden_layers", m.num_hidden_layers},
            {"num_attention_heads", m.num_attention_heads},
            {"num_key_value_heads", deepseek ? m.num_attention_heads : m.num_key_value_heads},
            {"num_experts_per_tok", m.num_experts_per_tok},
            {"norm_topk_prob", m.norm_topk_prob},
            {"hidden_act", "silu"},
            {"max_position_embeddings", m.max_position_embeddings},
            {"initializer_range", m.initializer_range},
            {"rms_norm_eps", m.rms_norm_eps},
            {"rope_theta", m.rope_theta},
            {"attention_bias", false},
            {"attention_dropout", 0.0},
            {"tie_word_embeddings", m.tie_word_embeddings},
            {"bos_token_id", nullptr},
            {"eos_token_id", token},
            {"use_cache", true},
            {"torch_dtype", "float32"}};
  if (deepseek) {
    j.update({{"n_routed_experts", m.num_experts},
              {"n_shared_experts", m.n_shared_experts},
              {"first_k_dense_replace", m.first_k_dense_replace},
              {"q_lora_rank", m.q_lora_rank ? json(m.q_lora_rank) : json(nullptr)},
              {"kv_lora_rank", m.kv_lora_rank},
              {"qk_nope_head_dim", m.qk_nope_head_dim},
              {"qk_rope_head_dim", m.qk_rope_head_dim},
              {"v_head_dim", m.v_head_dim},
              {"rope_interleave", m.rope_interleave},
              {"scoring_func", m.scoring_func},
              {"n_group", m.n_group},
              {"topk_group", m.topk_group},
              {"routed_scaling_factor", m.routed_scaling_factor}});
  } else {
    j.update({{"num_experts", m.num_experts},
              {"head_dim", m.head_dim},
              {"decoder_sparse_step", 1},
              {"mlp_only_layers", json::array()},
              {"router_aux_loss_coef", config.router.balance_loss}});
  }
  if (config.router.kind == "hero") {
    const auto& r = config.router;
    j["hero_router"] = {{"window", r.window ? json(r.window) : json(nullptr)},
                        {"scale", r.scale},
                        {"eps", r.eps},
                        {"detach", r.detach},
                        {"history", r.history},
                        {"stages", stage_of_layers(moe_layers(m), r.stages)}};
  }
  return j.dump(2) + "\n";
}

}  // namespace hero
