#include <nlohmann/json.hpp>

#include "config/router_kinds.h"
#include "hf/model_config.h"
#include "hf/python_files.h"
#include "model/router_kind.h"

namespace hero {

using nlohmann::ordered_json;

namespace {

// The model class in transformers: built in, or from modeling code in the exported folder.
struct ModelClass {
  std::string file;    // "": built into transformers
  std::string prefix;  // of the class names
};

ModelClass model_class(const Config& config) {
  const bool deepseek = config.model.is_deepseek();
  const std::string family(config.model.type().class_prefix);
  const RouterKindInfo& kind = router_kind_info(config.router);
  const bool custom = !kind.in_transformers || (deepseek && !config.model.has_sigmoid_scores());
  if (!custom) return {"", family};
  return {"modeling_" + kind.modeling + "_" + name_of(config.model.model_type), kind.class_prefix + family};
}

ordered_json rope_json(const ModelConfig& m) {
  const RopeScaling& y = m.rope_scaling;
  ordered_json j = {{"rope_type", name_of(y.type)}, {"rope_theta", m.rope_theta}};
  if (!y.is_yarn()) return j;
  j.update({{"factor", y.factor},
            {"original_max_position_embeddings", y.original_max_position_embeddings},
            {"beta_fast", y.beta_fast},
            {"beta_slow", y.beta_slow},
            {"truncate", y.truncate}});
  if (y.mscale > 0) j["mscale"] = y.mscale;
  if (y.mscale_all_dim > 0) j["mscale_all_dim"] = y.mscale_all_dim;
  if (y.attention_factor > 0) j["attention_factor"] = y.attention_factor;
  return j;
}

// As transformers writes it: null, an id, or a list.
ordered_json eos_token_ids(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? ordered_json(ids.front()) : ordered_json(ids);
}

}  // namespace

std::map<std::string, std::string> modeling_code(const Config& config) {
  const std::string file = model_class(config).file;
  if (file.empty()) return {};
  const std::string router = router_kind_info(config.router).modeling + "_router.py";
  std::map<std::string, std::string> files;
  for (const auto& [name, text] : python_files()) {
    if (name == file + ".py" || name == router) files[std::string(name)] = text;
  }
  return files;
}

std::string model_config_json(const Config& config, int64_t eos, const std::string& dtype) {
  return model_config_json(config, eos >= 0 ? std::vector<int64_t>{eos} : std::vector<int64_t>{}, dtype);
}

std::string generation_config_json(const std::vector<int64_t>& eos) {
  return ordered_json{{"eos_token_id", eos_token_ids(eos)}}.dump(2) + "\n";
}

std::string model_config_json(const Config& config, const std::vector<int64_t>& eos,
                              const std::string& dtype) {
  const auto& m = config.model;
  const bool deepseek = m.is_deepseek(), dense = m.type().has_dense_layers;
  const ModelClass code = model_class(config);
  ordered_json j = {{"architectures", {code.prefix + "ForCausalLM"}},
                    {"model_type", name_of(m.model_type)},
                    {"vocab_size", m.vocab_size},
                    {"hidden_size", m.hidden_size},
                    {"intermediate_size", dense ? m.intermediate_size : m.moe_intermediate_size},
                    {"num_hidden_layers", m.num_hidden_layers},
                    {"num_attention_heads", m.num_attention_heads},
                    {"num_key_value_heads", deepseek ? m.num_attention_heads : m.num_key_value_heads},
                    {"num_experts_per_tok", m.num_experts_per_tok},
                    {"hidden_act", "silu"},
                    {"max_position_embeddings", m.max_position_embeddings},
                    {"initializer_range", m.initializer_range},
                    {"rms_norm_eps", m.rms_norm_eps},
                    {"rope_theta", m.rope_theta},
                    {"attention_bias", false},
                    {"attention_dropout", 0.0},
                    {"tie_word_embeddings", m.tie_word_embeddings},
                    {"bos_token_id", nullptr},
                    {"pad_token_id", nullptr},  // OlmoeConfig defaults to 1, whose embedding gets no gradient
                    {"eos_token_id", eos_token_ids(eos)},
                    {"use_cache", true},
                    {"torch_dtype", dtype}};
  if (!m.type().always_norm_topk_prob) j["norm_topk_prob"] = m.norm_topk_prob;
  if (dense) j["moe_intermediate_size"] = m.moe_intermediate_size;
  if (m.rope_scaling.is_yarn()) j["rope_parameters"] = rope_json(m);
  if (!code.file.empty()) {
    const std::string classes = code.file + "." + code.prefix;
    j["auto_map"] = {{"AutoModel", classes + "Model"}, {"AutoModelForCausalLM", classes + "ForCausalLM"}};
  }
  if (deepseek) {
    j.update({{"n_routed_experts", m.num_experts},
              {"n_shared_experts", m.n_shared_experts},
              {"first_k_dense_replace", m.first_k_dense_replace},
              {"q_lora_rank", m.q_lora_rank ? ordered_json(m.q_lora_rank) : ordered_json(nullptr)},
              {"kv_lora_rank", m.kv_lora_rank},
              {"qk_nope_head_dim", m.qk_nope_head_dim},
              {"qk_rope_head_dim", m.qk_rope_head_dim},
              {"v_head_dim", m.v_head_dim},
              {"rope_interleave", m.rope_interleave},
              {"scoring_func", name_of(m.scoring_func)},
              {"n_group", m.n_group},
              {"topk_group", m.topk_group},
              {"routed_scaling_factor", m.routed_scaling_factor},
              {"num_nextn_predict_layers", m.num_nextn_predict_layers}});
  } else {
    j[m.type().experts_key] = m.num_experts;
    if (m.type().qk_norm != QkNorm::kProjection) j["head_dim"] = m.head_dim;
    if (dense) {
      j.update({{"decoder_sparse_step", m.decoder_sparse_step}, {"mlp_only_layers", m.mlp_only_layers}});
    }
    // transformers supports only a balance loss pooled over all layers.
    if (config.router.balance == BalanceScope::kPooled) {
      j.update({{"output_router_logits", true}, {"router_aux_loss_coef", config.router.balance_loss}});
    }
  }
  router_kind(config.router).write(config, j);
  return j.dump(2) + "\n";
}

}  // namespace hero
