#pragma once
// Every knob of the program. The values live in plain structs; the one list that gives each its key, default,
// help and check is in fields.cpp, and the TOML reader, the command line flags, --help and the dump all walk
// that list.
#include <cstdint>
#include <string>
#include <vector>

namespace hero {

/// YaRN (arXiv 2309.00071) as transformers and DeepSeek-V3 configure it.
struct RopeScaling {
  std::string type = "default";  ///< or "yarn"
  double factor = 1.0;           ///< longest sequence over the original one
  int64_t original_max_position_embeddings = 4096;
  double beta_fast = 32.0;  ///< turns over the original length above which a frequency stays
  double beta_slow = 1.0;   ///< and below which it is divided by `factor`
  double mscale = 0.0;
  double mscale_all_dim = 0.0;    ///< also scales the attention's logits (deepseek_v3)
  double attention_factor = 0.0;  ///< times cosine and sine; 0: from factor, mscale and mscale_all_dim
  bool truncate = true;           ///< bounds of the ramp are whole dimensions
};

/// Architecture; names as in Hugging Face configurations (`model_type` "qwen3_moe" or "deepseek_v3").
struct ModelConfig {
  std::string model_type = "qwen3_moe";
  int64_t vocab_size = 0;  ///< 0: that of the tokenizer beside the data
  int64_t hidden_size = 256;
  int64_t num_hidden_layers = 8;
  int64_t num_attention_heads = 8;
  int64_t num_key_value_heads = 4;  ///< grouped-query attention (qwen3_moe)
  int64_t head_dim = 32;            ///< qwen3_moe
  int64_t q_lora_rank = 0;  ///< multi-head latent attention (deepseek_v3); 0: queries straight from the input
  int64_t kv_lora_rank = 64;
  int64_t qk_nope_head_dim = 32;
  int64_t qk_rope_head_dim = 16;
  int64_t v_head_dim = 32;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool rope_interleave = true;  ///< deepseek_v3: rotary pairs lie side by side; qwen3_moe always uses halves
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  int64_t max_position_embeddings = 4096;
  int64_t intermediate_size = 640;       ///< of the dense layers
  int64_t first_k_dense_replace = 0;     ///< deepseek_v3
  int64_t decoder_sparse_step = 1;       ///< qwen3_moe: every so many layers one is a MoE layer
  std::vector<int64_t> mlp_only_layers;  ///< qwen3_moe: decoder layers, from 0, that are dense nevertheless
  int64_t num_experts = 32;
  int64_t num_experts_per_tok = 4;
  int64_t moe_intermediate_size = 160;
  int64_t n_shared_experts = 0;
  std::string scoring_func = "softmax";  ///< or "sigmoid"
  bool norm_topk_prob = true;
  double norm_topk_eps = 1e-20;
  double routed_scaling_factor = 1.0;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  double initializer_range = 0.02;
};

/// The router, its history, and how its load is balanced.
struct RouterConfig {
  std::string kind = "baseline";     ///< or "hero"
  int64_t window = 0;                ///< last k visible layers; 0: all
  bool scale = true;                 ///< rho of Eq. (rou); false: 1
  int64_t stages = 1;                ///< parts into which the MoE layers are split; history stays within one
  std::vector<int64_t> stage_sizes;  ///< MoE layers of every stage; empty: as equal as possible
  double eps = 1e-6;
  std::string init = "uniform";         ///< "zero": W_R = 0, W_O as a baseline's
  bool detach = true;                   ///< false lets gradient through history and rho
  std::string history = "stage";        ///< or "global"
  std::string dtype = "train";          ///< "fp32" lifts the router's operands and history
  std::string balance = "micro_batch";  ///< "none", "micro_batch", "sequence", "global", "pooled"
  double balance_loss = 1e-3;
  double z_loss = 0.0;
  double coupling_loss = 0.0;         ///< R_cp of arXiv 2602.14159
  double bias_update_rate = 0.0;      ///< aux-loss-free balancing
  double capacity_factor = 0.0;       ///< in training; 0: dropless
  double eval_capacity_factor = 0.0;  ///< outside training; 0: dropless
  std::string drop_policy = "probs";  ///< or "position"
  double jitter = 0.0;
  bool force_balance = false;
};

struct TrainConfig {
  int64_t seed = 1234;
  int64_t steps = 1000;
  int64_t sequence = 512;
  int64_t micro_batch = 4;
  int64_t global_batch = 4;
  std::string dtype = "bf16";   ///< "fp32", "fp64"
  std::string device = "auto";  ///< "cpu", "cuda"; auto: cuda where there is one
  bool cuda_graph = false;      ///< a step's work is recorded once and replayed
  bool recompute = false;
  std::string trainable = "all";  ///< or "routers": everything else stays as it is
  int64_t threads = 0;            ///< 0: all cores
  int64_t routing_every = 50;     ///< steps between snapshots of every expert's share in routing.jsonl
};

struct OptimConfig {
  double lr = 1e-3;
  double min_lr = 1e-4;
  int64_t warmup_steps = 50;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  ///< 0: none
};

struct CheckpointConfig {
  int64_t every = 200;       ///< steps; 0: only the last
  int64_t keep = 2;          ///< 0: all
  bool asynchronous = true;  ///< training goes on while files are written
};

/// How a run is spread over processes. None of it changes what is trained.
struct ParallelConfig {
  int64_t data = 0;                  ///< ranks that split the batch; 0: all that the pipeline leaves
  int64_t pipeline = 1;              ///< ranks that split the layers
  int64_t expert = 1;                ///< data ranks that split every MoE layer's experts
  int64_t chunks = 1;                ///< parts of the layers on every pipeline rank
  std::vector<int64_t> chunk_sizes;  ///< decoder layers of every part; empty: see layers_of_chunks
  std::string schedule = "1f1b";     ///< "interleaved", "zero_bubble"
  int64_t history_top = 0;           ///< entries of a layer's history that cross a boundary; 0: all
  double timeout = 600;              ///< seconds after which a silent rank is given up
};

struct Config {
  ModelConfig model;
  RouterConfig router;
  TrainConfig train;
  OptimConfig optim;
  CheckpointConfig checkpoint;
  ParallelConfig parallel;
};

/// `base` (defaults), then each TOML file in order, then `--section.key=value` flags. UserError names file,
/// line and key.
Config load_config(const std::vector<std::string>& files, const std::vector<std::string>& flags,
                   const Config& base = Config());

/// Refuses values out of their bounds, and values that contradict each other (k > E, heads not dividing ...).
/// UserError names the keys.
void check(const Config& config);

/// The complete configuration as TOML, section by section in the list's order; load_config reads it back
/// equal.
std::string dump(const Config& config);

/// For --help, 100 columns wide, by section: for every key a line with flag, type and default, then help,
/// bounds or choices, other names.
std::string field_help();

/// Keys whose values differ between two configurations, as "key: a -> b".
std::vector<std::string> differences(const Config& a, const Config& b);

/// Pipeline stage of each MoE layer (index l-1): parts of `router.stage_sizes`, or `router.stages` parts as
/// equal as possible, the first ones larger. UserError when a stage would be empty or the sizes do not add
/// up.
std::vector<int64_t> stage_of_layers(int64_t moe_layers, const RouterConfig& router);

/// S(l): the MoE layers before l (one-based) whose routing l sees, oldest first, under stages, window and
/// scope. `router.kind` is not asked: a baseline has the same S(l) and does not look.
std::vector<int64_t> visible_layers(int64_t l, const std::vector<int64_t>& stage_of,
                                    const RouterConfig& router);

/// For each decoder layer its number l among the MoE layers, from 1; 0 for a dense one.
std::vector<int64_t> moe_numbers(const ModelConfig& model);

/// First decoder layer of each of `chunks` parts of the model, and behind them the number of layers.
/// `parallel.chunk_sizes` decides; without it, parts that are as many as the router's stages begin where the
/// stages do, and others are as equal as possible, the first ones larger. UserError when a part would be
/// empty or the sizes do not add up.
std::vector<int64_t> chunk_bounds(const Config& config, int64_t chunks);

/// Number of MoE layers.
int64_t moe_layers(const ModelConfig& model);

}  // namespace hero
