#pragma once
// All options of the program, in plain structs. fields.cpp declares the key, attributes, help and bounds of
// each; the TOML reader, the command-line flags, --help and the dump use that list.
#include <cstdint>
#include <string>
#include <vector>

#include "config/choices.h"
#include "config/model_types.h"

namespace hero {

/// YaRN (arXiv 2309.00071), configured as in transformers and DeepSeek-V3.
struct RopeScaling {
  RopeType type = RopeType::kDefault;
  double factor = 1.0;  ///< ratio of extended to original context length
  int64_t original_max_position_embeddings = 4096;
  double beta_fast = 32.0;  ///< rotations above which a frequency is not scaled
  double beta_slow = 1.0;   ///< rotations below which it is divided by `factor`
  double mscale = 0.0;
  double mscale_all_dim = 0.0;    ///< also scales the attention logits (deepseek_v3)
  double attention_factor = 0.0;  ///< scale of cosine and sine; 0: from factor, mscale, mscale_all_dim
  bool truncate = true;           ///< round the ramp's bounds to integer dimensions

  bool is_yarn() const { return type == RopeType::kYarn; }
};

/// Architecture. Names follow Hugging Face configurations (`model_type` is one of model_types.h).
struct ModelConfig {
  ModelType model_type = ModelType::kQwen3Moe;
  int64_t vocab_size = 0;  ///< 0: size of the tokenizer stored with the data
  int64_t hidden_size = 256;
  int64_t num_hidden_layers = 8;
  int64_t num_attention_heads = 8;
  int64_t num_key_value_heads = 4;  ///< grouped-query attention (not deepseek_v3)
  int64_t head_dim = 32;            ///< not deepseek_v3
  int64_t q_lora_rank = 0;          ///< multi-head latent attention (deepseek_v3); 0: no query compression
  int64_t kv_lora_rank = 64;
  int64_t qk_nope_head_dim = 32;
  int64_t qk_rope_head_dim = 16;
  int64_t v_head_dim = 32;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool rope_interleave = true;  ///< deepseek_v3: interleave rotary pairs; others never do
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  int64_t max_position_embeddings = 4096;
  int64_t intermediate_size = 640;       ///< of the dense layers
  int64_t first_k_dense_replace = 0;     ///< deepseek_v3
  int64_t decoder_sparse_step = 1;       ///< qwen3_moe: every n-th layer is a MoE layer
  std::vector<int64_t> mlp_only_layers;  ///< qwen3_moe: indices of dense decoder layers
  int64_t num_experts = 32;
  int64_t num_experts_per_tok = 4;
  int64_t moe_intermediate_size = 160;
  int64_t n_shared_experts = 0;
  ScoringFunc scoring_func = ScoringFunc::kSoftmax;
  bool norm_topk_prob = true;
  double norm_topk_eps = 1e-20;
  double routed_scaling_factor = 1.0;
  int64_t num_nextn_predict_layers = 0;  ///< multi-token prediction modules (deepseek_v3)
  int64_t n_group = 1;
  int64_t topk_group = 1;
  double initializer_range = 0.02;

  const ModelTypeInfo& type() const { return model_type_info(model_type); }
  bool is_deepseek() const { return model_type == ModelType::kDeepseekV3; }
  bool has_sigmoid_scores() const { return scoring_func == ScoringFunc::kSigmoid; }
};

/// Router, routing history and load balancing.
struct RouterConfig {
  std::string kind = "baseline";     ///< a name of router_kinds()
  int64_t window = 0;                ///< most recent visible layers; 0: all
  bool scale = true;                 ///< rho of Eq. (rou); false: 1
  int64_t stages = 1;                ///< router stages; the history does not cross them
  std::vector<int64_t> stage_sizes;  ///< MoE layers per stage; empty: as equal as possible
  int64_t state_size = 64;           ///< p, width of the GRU's state (rmoe)
  double eps = 1e-6;
  RouterInit init = RouterInit::kUniform;
  bool detach = true;  ///< stop gradients through the history and rho, or the GRU's state
  HistoryScope history = HistoryScope::kStage;
  RouterDtype dtype = RouterDtype::kTrain;
  BalanceScope balance = BalanceScope::kMicroBatch;
  double balance_loss = 1e-2;
  double z_loss = 0.0;
  double coupling_loss = 0.0;         ///< R_cp of arXiv 2602.14159
  double bias_update_rate = 0.0;      ///< aux-loss-free balancing
  double capacity_factor = 0.0;       ///< in training; 0: dropless
  double eval_capacity_factor = 0.0;  ///< outside training; 0: dropless
  DropPolicy drop_policy = DropPolicy::kProbs;
  double jitter = 0.0;
  bool force_balance = false;

  /// Whether the history crosses router stages.
  bool has_global_history() const { return history == HistoryScope::kGlobal; }
};

struct TrainConfig {
  int64_t seed = 1234;
  int64_t steps = 1000;
  int64_t sequence = 512;
  int64_t micro_batch = 4;
  int64_t global_batch = 4;
  Dtype dtype = Dtype::kBf16;
  DeviceChoice device = DeviceChoice::kAuto;
  bool cuda_graph = false;  ///< capture a step in a CUDA graph and replay it
  bool recompute = false;
  Trainable trainable = Trainable::kAll;
  int64_t threads = 0;              ///< 0: all cores
  int64_t routing_every = 50;       ///< steps between snapshots of expert shares in routing.jsonl
  int64_t skip_nonfinite = 0;       ///< updates in a row; 0: a value that is not finite ends the run
  double spike_skip = 0;            ///< standard deviations; 0: none
  int64_t norms_every = 0;          ///< steps between norms of gradients, updates and weights; 0: none
  bool document_mask = false;       ///< attention within documents only
  bool document_positions = false;  ///< positions restart with each document
  Packing pack = Packing::kConcat;
  int64_t log_every = 10;  ///< steps between progress lines where stderr is not a terminal
  bool loss_mask = false;  ///< train only on the tokens that the data marks
  double mtp_loss = 0.3;   ///< lambda, weight of the multi-token prediction loss

  /// Whether no weight is frozen.
  bool trains_all() const { return trainable == Trainable::kAll; }
};

/// A part of a run with its own blend of data. It ends at the first step at or after its bound; the last
/// phase has none.
struct DataPhase {
  int64_t until_step = 0;          ///< steps since the start of the run; 0: not given
  int64_t until_tokens = 0;        ///< tokens since the start of the run; 0: not given
  std::vector<std::string> blend;  ///< PREFIX or WEIGHT:PREFIX, as --data

  bool operator==(const DataPhase&) const = default;
};

struct DataConfig {
  std::vector<DataPhase> phases;  ///< empty: --data for the whole run
};

struct OptimConfig {
  OptimKind kind = OptimKind::kAdamW;
  double lr = 1e-3;
  double min_lr = 1e-4;
  int64_t warmup_steps = 50;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  ///< 0: none
  double muon_momentum = 0.95;
  bool muon_router = false;          ///< Muon for the matrices of routers
  double router_lr = 1.0;            ///< factor of the learning rate of W_O
  double history_lr = 1.0;           ///< the same of W_R
  double history_weight_decay = -1;  ///< of W_R; -1: weight_decay
  LrSchedule schedule = LrSchedule::kCosine;
  int64_t decay_steps = 0;                       ///< 0: see learning_rate
  DecayShape decay_shape = DecayShape::kLinear;  ///< wsd
  std::string offload_folder;                    ///< of the optimizer's state; empty: in memory
};

/// Validation during training.
struct EvalConfig {
  int64_t every = 0;              ///< steps; 0: off
  int64_t batches = 0;            ///< global batches per data set; 0: all
  std::vector<std::string> data;  ///< PREFIX or NAME=PREFIX; empty: the validation half of the training data
};

struct CheckpointConfig {
  int64_t every = 200;       ///< steps; 0: only the last
  int64_t keep = 2;          ///< 0: all
  bool asynchronous = true;  ///< write files while training continues
  bool keep_best = false;    ///< also keep the checkpoint with the lowest validation loss
};

/// Parallel layout. Except history_top, no option changes the trained model.
struct ParallelConfig {
  int64_t data = 0;                  ///< data parallel size; 0: number of ranks / pipeline
  int64_t pipeline = 1;              ///< pipeline parallel size
  int64_t expert = 1;                ///< expert parallel size, within the data ranks
  int64_t chunks = 1;                ///< model chunks per pipeline rank
  std::vector<int64_t> chunk_sizes;  ///< decoder layers per chunk; empty: see chunk_bounds
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int64_t history_top = 0;  ///< history entries per layer that cross a boundary; 0: all
  double timeout = 600;     ///< seconds without a heartbeat until a rank counts as lost
};

struct Config {
  ModelConfig model;
  RouterConfig router;
  TrainConfig train;
  DataConfig data;
  OptimConfig optim;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  ParallelConfig parallel;
};

/// Applies to `base` each TOML file in order, then the `--section.key=value` flags. UserError names the file,
/// line and key.
Config load_config(const std::vector<std::string>& files, const std::vector<std::string>& flags,
                   const Config& base = Config());

/// Rejects values out of bounds and inconsistent values (k > E, non-divisible heads, ...). UserError names
/// the keys.
void check(const Config& config);

/// Complete configuration as TOML, in declaration order. load_config restores an equal configuration.
std::string dump(const Config& config);

/// Help text of all options by section. Two lines per option: flag, type and default; help, bounds or
/// choices, aliases, whether it may change on resume.
std::string field_help();

/// Keys with different values in two configurations, as "key: a -> b".
std::vector<std::string> differences(const Config& a, const Config& b);

/// Router stage of each MoE layer (index l-1), by `router.stage_sizes`, or `router.stages` stages as equal as
/// possible, larger ones first. UserError for an empty stage or sizes with a wrong sum.
std::vector<int64_t> stage_of_layers(int64_t moe_layers, const RouterConfig& router);

/// S(l): the MoE layers before l (one-based) whose routing l sees, oldest first, given stages, window and
/// scope. Independent of `router.kind`; RouterKind::visible has the S(l) that routers of a kind use.
std::vector<int64_t> visible_layers(int64_t l, const std::vector<int64_t>& stage_of,
                                    const RouterConfig& router);

/// Number l of each decoder layer among the MoE layers, one-based; 0 for a dense layer.
std::vector<int64_t> moe_layer_numbers(const ModelConfig& model);

/// First decoder layer of each of `chunks` model chunks, followed by the number of layers. Sizes are
/// `parallel.chunk_sizes` if given; else the router stages if there are as many; else as equal as possible,
/// larger ones first. UserError for an empty chunk or sizes with a wrong sum.
std::vector<int64_t> chunk_bounds(const Config& config, int64_t chunks);

/// Number of MoE layers.
int64_t moe_layers(const ModelConfig& model);

}  // namespace hero
