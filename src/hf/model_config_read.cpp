#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "config/toml_file.h"
#include "hf/model_config.h"
#include "io/error.h"
#include "io/file_io.h"
#include "io/strict_json.h"

namespace hero {
namespace {

using nlohmann::json;

// What every reader of JSON keeps exact; sums of two cannot overflow.
constexpr int64_t kExact = int64_t{1} << 53;

bool is_integer(const json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() < kExact;
  return value.is_number_integer() && value.get<int64_t>() > -kExact;
}

// An object of the file. Every key that is asked for is remembered; what nobody asked for is refused at the
// end.
class Section {
 public:
  Section(std::string where, json object) : where_(std::move(where)), object_(std::move(object)) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const {
    throw UserError(where_ + ": " + key + ": found " + (has(key) ? shown(object_[key]) : "nothing") +
                    ", expected " + expected);
  }

  bool has(const std::string& key) const { return object_.contains(key) && !object_[key].is_null(); }
  void harmless(const std::string& key) { asked_.insert(key); }

  int64_t integer(const std::string& key, std::optional<int64_t> otherwise = {}) {
    return value<int64_t>(key, otherwise, "an integer below 2^53", is_integer);
  }
  double number(const std::string& key, std::optional<double> otherwise = {}) {
    return value<double>(key, otherwise, "a number", [](const json& v) { return v.is_number(); });
  }
  bool flag(const std::string& key, std::optional<bool> otherwise = {}) {
    return value<bool>(key, otherwise, "true or false", [](const json& v) { return v.is_boolean(); });
  }
  std::string text(const std::string& key, const std::optional<std::string>& otherwise = {}) {
    return value<std::string>(key, otherwise, "a string", [](const json& v) { return v.is_string(); });
  }
  std::vector<int64_t> integers(const std::string& key) {
    return value<std::vector<int64_t>>(key, std::vector<int64_t>{}, "a list of integers", [](const json& v) {
      return v.is_array() && std::ranges::all_of(v, is_integer);
    });
  }
  // What ends a text; read by others.
  void end_tokens(const std::string& key) {
    asked_.insert(key);
    const auto fits = [](const json& v) { return is_integer(v); };
    if (has(key) && !fits(object_[key]) &&
        !(object_[key].is_array() && std::ranges::all_of(object_[key], fits))) {
      refuse(key, "an integer or a list of integers");
    }
  }
  std::optional<Section> section(const std::string& key) {
    asked_.insert(key);
    if (!has(key)) return std::nullopt;
    if (!object_[key].is_object()) refuse(key, "an object");
    return Section(where_ + ": " + key, object_[key]);
  }
  // A feature that this program lacks: the key must be absent, null or one of these values.
  void only(const std::string& key, const std::vector<json>& values, const std::string& feature) {
    asked_.insert(key);
    if (has(key) && std::ranges::find(values, object_[key]) == values.end()) {
      refuse(key, (values.empty() ? "nothing" : shown(values[0])) + ": " + feature);
    }
  }

  void refuse_unknown() const {
    for (const auto& [key, found] : object_.items()) {
      if (!asked_.count(key)) {
        throw UserError(where_ + ": " + one_line(key) + ": found " + shown(found) +
                        ", expected no such key: it may ask for a feature that this program lacks");
      }
    }
  }

 private:
  template <class T, class Check>
  T value(const std::string& key, const std::optional<T>& otherwise, const std::string& expected,
          Check fits) {
    asked_.insert(key);
    if (!has(key) && otherwise) return *otherwise;
    if (!has(key) || !fits(object_[key])) refuse(key, expected);
    return object_[key].get<T>();
  }

  std::string where_;
  json object_;
  std::set<std::string> asked_;
};

// What transformers writes into every configuration, and what concerns only generation or training elsewhere.
constexpr const char* kHarmless[] = {"architectures",
                                     "auto_map",
                                     "bos_token_id",
                                     "pad_token_id",
                                     "transformers_version",
                                     "use_cache",
                                     "_name_or_path",
                                     "name_or_path",
                                     "pretraining_tp",
                                     "ep_size",
                                     "num_nextn_predict_layers",
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
  if (rope && legacy) config.refuse("rope_scaling", "nothing: rope_parameters is there already");
  if (!rope) rope = std::move(legacy);
  const auto theta = config.has("rope_theta") ? std::optional(config.number("rope_theta")) : std::nullopt;
  config.harmless("rope_theta");
  if (!rope) {
    m.rope_theta = theta.value_or(10000.0);
    return;
  }
  m.rope_theta = rope->number("rope_theta", theta.value_or(10000.0));
  RopeScaling& y = m.rope_scaling;
  const std::string old_name = rope->text("type", "default");
  y.type = rope->text("rope_type", old_name);
  if (y.type == "default") {
    rope->refuse_unknown();
    return;
  }
  if (y.type != "yarn")
    rope->refuse(rope->has("rope_type") ? "rope_type" : "type", "\"default\" or \"yarn\"");
  y.original_max_position_embeddings =
      rope->integer("original_max_position_embeddings", m.max_position_embeddings);
  const bool latent = m.model_type == "deepseek_v3" && rope->has("mscale_all_dim");
  y.factor =
      rope->number("factor", latent ? std::nullopt
                                    : std::optional(static_cast<double>(m.max_position_embeddings) /
                                                    static_cast<double>(y.original_max_position_embeddings)));
  y.beta_fast = rope->number("beta_fast", 32.0);
  y.beta_slow = rope->number("beta_slow", 1.0);
  y.mscale = rope->number("mscale", 0.0);
  y.mscale_all_dim = rope->number("mscale_all_dim", 0.0);
  y.attention_factor = rope->number("attention_factor", 0.0);
  y.truncate = rope->flag("truncate", true);
  rope->refuse_unknown();
}

void read_common(Section& config, ModelConfig& m) {
  m.vocab_size = config.integer("vocab_size");
  if (m.vocab_size < 1) config.refuse("vocab_size", "an integer from 1");
  m.hidden_size = config.integer("hidden_size");
  m.num_hidden_layers = config.integer("num_hidden_layers");
  m.num_attention_heads = config.integer("num_attention_heads");
  m.intermediate_size = config.integer("intermediate_size");
  m.moe_intermediate_size = config.integer("moe_intermediate_size");
  m.num_experts_per_tok = config.integer("num_experts_per_tok");
  m.rms_norm_eps = config.number("rms_norm_eps", 1e-6);
  m.initializer_range = config.number("initializer_range", 0.02);
  m.tie_word_embeddings = config.flag("tie_word_embeddings", false);
  config.end_tokens("eos_token_id");
  config.only("hidden_act", {"silu"}, "other activations are not supported");
  config.only("attention_bias", {false}, "biases of attention are not supported");
  config.only("attention_dropout", {0.0}, "dropout is not supported");
  config.only("quantization_config", {}, "quantized weights are not supported");
  config.only("partial_rotary_factor", {1.0}, "partial rotary embeddings are not supported");
}

void read_qwen3(Section& config, ModelConfig& m, RouterConfig& r) {
  const std::string experts = config.has("num_experts") ? "num_experts" : "num_local_experts";
  m.num_experts = config.integer(experts);
  config.only("num_local_experts", {m.num_experts}, "num_experts says it already");
  m.num_key_value_heads = config.integer("num_key_value_heads");
  m.head_dim = config.integer("head_dim", m.hidden_size / std::max<int64_t>(m.num_attention_heads, 1));
  m.norm_topk_prob = config.flag("norm_topk_prob", false);
  m.decoder_sparse_step = config.integer("decoder_sparse_step", 1);
  m.mlp_only_layers = config.integers("mlp_only_layers");
  config.only("use_sliding_window", {false}, "sliding windows are not supported");
  const double coefficient = config.number("router_aux_loss_coef", 0.001);
  r.balance = config.flag("output_router_logits", false) ? "pooled" : "none";
  if (r.balance == "pooled") r.balance_loss = coefficient;
}

void read_deepseek(Section& config, ModelConfig& m, RouterConfig& r) {
  m.num_experts = config.integer(config.has("n_routed_experts") ? "n_routed_experts" : "num_local_experts");
  config.only("num_local_experts", {m.num_experts}, "n_routed_experts says it already");
  m.n_shared_experts = config.integer("n_shared_experts", 0);
  m.first_k_dense_replace = config.integer("first_k_dense_replace", 0);
  m.q_lora_rank = config.integer("q_lora_rank", 0);
  m.kv_lora_rank = config.integer("kv_lora_rank");
  m.qk_nope_head_dim = config.integer("qk_nope_head_dim");
  m.qk_rope_head_dim = config.integer("qk_rope_head_dim");
  m.v_head_dim = config.integer("v_head_dim");
  m.rope_interleave = config.flag("rope_interleave", true);
  m.norm_topk_prob = config.flag("norm_topk_prob", true);
  m.routed_scaling_factor = config.number("routed_scaling_factor");
  m.n_group = config.integer("n_group", 1);
  m.topk_group = config.integer("topk_group", 1);
  m.scoring_func = config.text("scoring_func", "sigmoid");
  if (m.scoring_func != "sigmoid" && m.scoring_func != "softmax")
    config.refuse("scoring_func", "sigmoid or softmax");
  m.num_key_value_heads = m.num_attention_heads;
  config.only("num_key_value_heads", {m.num_attention_heads}, "latent attention has one key per query head");
  config.only("head_dim", {m.qk_rope_head_dim}, "qk_rope_head_dim says it already");
  config.only("qk_head_dim", {m.qk_nope_head_dim + m.qk_rope_head_dim}, "the parts' sum");
  config.only("topk_method", {"noaux_tc"}, "other choices of experts are not supported");
  config.only("moe_layer_freq", {1}, "a step of MoE layers is not supported");
  config.only("output_router_logits", {false, true}, "a flag");
  r.balance = "none";
}

// The list of every MoE layer's stage as sizes; empty where equal parts say the same.
void read_stages(Section& router, const ModelConfig& m, RouterConfig& r) {
  const auto stages = router.integers("stages");
  if (stages.empty()) return;
  int64_t previous = 0;
  r.stage_sizes.assign(1, 0);
  for (const int64_t stage : stages) {
    if (stage == previous + 1) r.stage_sizes.push_back(0);
    if (stage < previous || stage > previous + 1)
      router.refuse("stages", "numbers that begin at 0 and grow by 1");
    ++r.stage_sizes.back();
    previous = stage;
  }
  if (static_cast<int64_t>(stages.size()) != moe_layers(m)) {
    router.refuse("stages", "one number for each of the " + std::to_string(moe_layers(m)) + " MoE layers");
  }
  if (r.stage_sizes[0] == 0) router.refuse("stages", "numbers that begin at 0 and grow by 1");
  r.stages = static_cast<int64_t>(r.stage_sizes.size());
  RouterConfig equal;
  equal.stages = r.stages;
  if (stage_of_layers(moe_layers(m), equal) == stages) r.stage_sizes.clear();
}

void read_hero_router(Section& config, const ModelConfig& m, RouterConfig& r) {
  auto router = config.section("hero_router");
  if (!router) return;
  r.kind = "hero";
  r.window = router->integer("window", 0);
  if (router->has("window") && r.window < 1) router->refuse("window", "null or an integer of at least 1");
  r.scale = router->flag("scale", true);
  r.eps = router->number("eps", 1e-6);
  r.detach = router->flag("detach", true);
  r.history = router->text("history", "stage");
  if (r.history != "stage" && r.history != "global") router->refuse("history", "\"stage\" or \"global\"");
  read_stages(*router, m, r);
  router->refuse_unknown();
}

// fp32 runs read half-precision weights too: both fit.
std::string run_dtype(Section& config) {
  const std::string name = config.text("dtype", config.text("torch_dtype", "float32"));
  if (name == "bfloat16") return "bf16";
  if (name == "float32" || name == "float16") return "fp32";
  if (name == "float64") return "fp64";
  config.refuse(config.has("dtype") ? "dtype" : "torch_dtype", "bfloat16, float16, float32 or float64");
}

}  // namespace

Config parse_model_config(std::string_view text, const std::string& file) {
  auto object = parse_strict(text, file);
  if (!object.is_object())
    throw UserError(file + ": found " + shown(object) + ", expected a model's configuration: a JSON object");
  Section section(file, std::move(object));
  Config config;
  ModelConfig& m = config.model;
  m.model_type = section.text("model_type");
  if (m.model_type != "qwen3_moe" && m.model_type != "deepseek_v3") {
    section.refuse("model_type", "\"qwen3_moe\" or \"deepseek_v3\"");
  }
  read_common(section, m);
  read_rope(section, m);
  if (m.model_type == "qwen3_moe") {
    read_qwen3(section, m, config.router);
  } else {
    read_deepseek(section, m, config.router);
  }
  config.train.dtype = run_dtype(section);
  config.train.sequence = std::min(config.train.sequence, m.max_position_embeddings);
  for (const char* key : kHarmless) section.harmless(key);
  try {
    check(config);
    read_hero_router(section, m, config.router);
    section.refuse_unknown();
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
