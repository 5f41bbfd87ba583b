#include <algorithm>
#include <optional>

#include "config/json_section.h"
#include "hf/model_config.h"
#include "io/error.h"
#include "io/file_io.h"
#include "io/json.h"
#include "model/router_kind.h"

namespace hero {
namespace {

using Section = JsonSection;

// Keys that do not affect the model: transformers' metadata, and settings of generation or training.
constexpr const char* kIgnoredKeys[] = {"architectures",
                                        "auto_map",
                                        "bos_token_id",
                                        "pad_token_id",
                                        "transformers_version",
                                        "use_cache",
                                        "_name_or_path",
                                        "name_or_path",
                                        "pretraining_tp",
                                        "ep_size",
                                        "num_mtp_layers",
                                        "max_window_layers",
                                        "sliding_window",
                                        "layer_types",
                                        "aux_loss_alpha",
                                        "seq_aux",
                                        "output_attentions",
                                        "output_hidden_states",
                                        "return_dict",
                                        "_attn_implementation",
                                        "chunk_size_feed_forward",
                                        "is_encoder_decoder",
                                        "id2label",
                                        "label2id",
                                        "problem_type",
                                        "_experts_implementation",
                                        "experts_implementation"};

void read_rope(Section& config, ModelConfig& m) {
  m.max_position_embeddings = config.integer("max_position_embeddings");
  auto rope = config.section("rope_parameters");
  auto legacy = config.section("rope_scaling");
  if (rope && legacy) config.reject("rope_scaling", "nothing: rope_parameters is already set");
  if (!rope) rope = std::move(legacy);
  const auto theta = config.has("rope_theta") ? std::optional(config.number("rope_theta")) : std::nullopt;
  config.ignore("rope_theta");
  if (!rope) {
    m.rope_theta = theta.value_or(m.type().rope_theta);
    return;
  }
  m.rope_theta = rope->number("rope_theta", theta.value_or(m.type().rope_theta));
  RopeScaling& y = m.rope_scaling;
  const std::string old_name = rope->text("type", name_of(RopeType::kDefault));
  const auto type = find_choice<RopeType>(rope->text("rope_type", old_name));
  if (!type) rope->reject(rope->has("rope_type") ? "rope_type" : "type", "\"default\" or \"yarn\"");
  y.type = *type;
  if (!y.is_yarn()) {
    rope->reject_unknown();
    return;
  }
  y.original_max_position_embeddings =
      rope->integer("original_max_position_embeddings", m.max_position_embeddings);
  const bool deepseek_yarn = m.is_deepseek() && rope->has("mscale_all_dim");
  y.factor = rope->number(
      "factor", deepseek_yarn ? std::nullopt
                              : std::optional(static_cast<double>(m.max_position_embeddings) /
                                              static_cast<double>(y.original_max_position_embeddings)));
  y.beta_fast = rope->number("beta_fast", 32.0);
  y.beta_slow = rope->number("beta_slow", 1.0);
  y.mscale = rope->number("mscale", 0.0);
  y.mscale_all_dim = rope->number("mscale_all_dim", 0.0);
  y.attention_factor = rope->number("attention_factor", 0.0);
  y.truncate = rope->flag("truncate", true);
  rope->reject_unknown();
}

void read_common(Section& config, ModelConfig& m) {
  m.vocab_size = config.integer("vocab_size");
  if (m.vocab_size < 1) config.reject("vocab_size", "an integer from 1");
  m.hidden_size = config.integer("hidden_size");
  m.num_hidden_layers = config.integer("num_hidden_layers");
  m.num_attention_heads = config.integer("num_attention_heads");
  // Without dense layers, transformers calls the width of the experts intermediate_size.
  const bool dense = m.type().has_dense_layers;
  if (dense) m.intermediate_size = config.integer("intermediate_size");
  m.moe_intermediate_size = config.integer(dense ? "moe_intermediate_size" : "intermediate_size");
  m.num_experts_per_tok = config.integer("num_experts_per_tok");
  m.rms_norm_eps = config.number("rms_norm_eps", m.type().rms_norm_eps);
  m.initializer_range = config.number("initializer_range", 0.02);
  m.tie_word_embeddings = config.flag("tie_word_embeddings", false);
  config.check_token_ids("eos_token_id");
  config.expect_only("hidden_act", {"silu"}, "other activations are not supported");
  config.expect_only("attention_bias", {false}, "attention biases are not supported");
  config.expect_only("attention_dropout", {0.0}, "dropout is not supported");
  config.expect_only("quantization_config", {}, "quantized weights are not supported");
  config.expect_only("partial_rotary_factor", {1.0}, "partial rotary embeddings are not supported");
}

void read_grouped_query(Section& config, ModelConfig& m, RouterConfig& r) {
  const std::string experts = config.has("num_experts") ? "num_experts" : "num_local_experts";
  m.num_experts = config.integer(experts);
  config.expect_only("num_local_experts", {m.num_experts}, "must equal num_experts");
  // transformers' defaults of the other types are numbers of published models.
  const bool olmoe = m.model_type == ModelType::kOlmoe;
  m.num_key_value_heads =
      config.integer("num_key_value_heads", olmoe ? std::optional(m.num_attention_heads) : std::nullopt);
  m.head_dim = config.integer("head_dim", m.hidden_size / std::max<int64_t>(m.num_attention_heads, 1));
  m.norm_topk_prob = config.flag("norm_topk_prob", m.type().always_norm_topk_prob);
  if (m.type().has_dense_layers) {
    m.decoder_sparse_step = config.integer("decoder_sparse_step", 1);
    m.mlp_only_layers = config.integers("mlp_only_layers");
  }
  if (olmoe) config.expect_only("clip_qkv", {}, "clipping of queries, keys and values is not supported");
  if (m.model_type == ModelType::kMixtral) {
    config.expect_only("sliding_window", {}, "sliding windows are not supported");
    config.expect_only("router_jitter_noise", {0.0}, "set router.jitter instead");
  }
  config.expect_only("use_sliding_window", {false}, "sliding windows are not supported");
  const double coefficient = config.number("router_aux_loss_coef", m.type().router_aux_loss_coef);
  const bool pooled = config.flag("output_router_logits", false);
  r.balance = pooled ? BalanceScope::kPooled : BalanceScope::kNone;
  if (pooled) r.balance_loss = coefficient;
}

void read_deepseek(Section& config, ModelConfig& m, RouterConfig& r) {
  m.num_experts = config.integer(config.has("n_routed_experts") ? "n_routed_experts" : "num_local_experts");
  config.expect_only("num_local_experts", {m.num_experts}, "must equal n_routed_experts");
  // transformers' defaults, also of keys below, are numbers of a published model.
  m.n_shared_experts = config.integer("n_shared_experts");
  m.first_k_dense_replace = config.integer("first_k_dense_replace");
  m.q_lora_rank =
      config.is_null("q_lora_rank") ? config.integer("q_lora_rank", 0) : config.integer("q_lora_rank");
  m.kv_lora_rank = config.integer("kv_lora_rank");
  m.qk_nope_head_dim = config.integer("qk_nope_head_dim");
  m.qk_rope_head_dim = config.integer("qk_rope_head_dim");
  m.v_head_dim = config.integer("v_head_dim");
  // transformers takes null for false.
  m.rope_interleave = config.flag("rope_interleave", !config.is_null("rope_interleave"));
  m.norm_topk_prob = config.flag("norm_topk_prob", !config.is_null("norm_topk_prob"));
  m.routed_scaling_factor = config.number("routed_scaling_factor");
  const bool nextn = config.has("num_nextn_predict_layers");
  m.num_nextn_predict_layers = config.integer(nextn ? "num_nextn_predict_layers" : "num_mtp_layers", 0);
  m.n_group = config.integer("n_group");
  m.topk_group = config.integer("topk_group");
  const auto scoring = find_choice<ScoringFunc>(config.text("scoring_func", name_of(ScoringFunc::kSigmoid)));
  if (!scoring) config.reject("scoring_func", "sigmoid or softmax");
  m.scoring_func = *scoring;
  m.num_key_value_heads = m.num_attention_heads;
  config.expect_only("num_key_value_heads", {m.num_attention_heads},
                     "multi-head latent attention has one key per query head");
  config.expect_only("head_dim", {m.qk_rope_head_dim}, "must equal qk_rope_head_dim");
  config.expect_only("qk_head_dim", {m.qk_nope_head_dim + m.qk_rope_head_dim},
                     "the sum of qk_nope_head_dim and qk_rope_head_dim");
  config.expect_only("topk_method", {"noaux_tc"}, "other top-k methods are not supported");
  config.expect_only("moe_layer_freq", {1}, "other MoE layer frequencies are not supported");
  config.expect_only("output_router_logits", {false, true}, "must be true or false");
  r.balance = BalanceScope::kNone;
}

// float16 maps to fp32, which represents its values exactly.
Dtype read_dtype(Section& config) {
  const std::string name = config.text("dtype", config.text("torch_dtype", "float32"));
  if (name == "bfloat16") return Dtype::kBf16;
  if (name == "float32" || name == "float16") return Dtype::kFp32;
  if (name == "float64") return Dtype::kFp64;
  config.reject(config.has("dtype") ? "dtype" : "torch_dtype", "bfloat16, float16, float32 or float64");
}

}  // namespace

Config parse_model_config(std::string_view text, const std::string& file) {
  auto object = parse_json(text, {file});
  if (!object.is_object())
    throw UserError(file + ": found " + format_value(object) +
                    ", expected a model configuration: a JSON object");
  Section section(file, std::move(object));
  Config config;
  ModelConfig& m = config.model;
  const auto model_type = find_choice<ModelType>(section.text("model_type"));
  if (!model_type) section.reject("model_type", "\"qwen3_moe\", \"deepseek_v3\", \"olmoe\" or \"mixtral\"");
  m.model_type = *model_type;
  read_common(section, m);
  read_rope(section, m);
  if (m.is_deepseek()) {
    read_deepseek(section, m, config.router);
  } else {
    read_grouped_query(section, m, config.router);
  }
  config.train.dtype = read_dtype(section);
  config.train.sequence = std::min(config.train.sequence, m.max_position_embeddings);
  for (const char* key : kIgnoredKeys) section.ignore(key);
  try {
    check(config);
    for (const RouterKind* kind : all_router_kinds()) kind->read(section, m, config.router);
    section.reject_unknown();
    check(config);
  } catch (const UserError& error) {
    const std::string what = error.what();
    throw UserError(what.starts_with(file) ? what : file + ": " + what);
  }
  return config;
}

Config read_model_config(const std::filesystem::path& config_json) {
  return parse_model_config(read_file(config_json.string()), config_json.string());
}

}  // namespace hero
