// The list of options, in the order of --help and of the dump.
#include "config/fields.h"

#include <utility>

namespace hero {
namespace {

// Sizes are at most 2^31 - 1, so that a product of two fits in 64 bits. The seed is below 2^53, which every
// JSON reader represents exactly.
constexpr double kIntegerLimit = 2147483647;
constexpr double kLayerLimit = 65535;
constexpr double kSeedLimit = 9007199254740991;

Field integer(std::string key, int64_t* value, double min, std::string help, double max = kIntegerLimit) {
  return {.key = std::move(key), .value = value, .help = std::move(help), .min = min, .max = max};
}

Field non_negative(std::string key, double* value, std::string help) {
  return {.key = std::move(key), .value = value, .help = std::move(help), .min = 0};
}

Field positive(std::string key, double* value, std::string help) {
  return {.key = std::move(key), .value = value, .help = std::move(help), .min = 0, .above_min = true};
}

Field fraction(std::string key, double* value, std::string help) {
  return {
      .key = std::move(key), .value = value, .help = std::move(help), .min = 0, .max = 1, .below_max = true};
}

Field integers(std::string key, std::vector<int64_t>* value, double min, std::string help) {
  return {.key = std::move(key), .value = value, .help = std::move(help), .min = min, .max = kIntegerLimit};
}

Field flag(std::string key, bool* value, std::string help) {
  return {.key = std::move(key), .value = value, .help = std::move(help)};
}

Field choice(std::string key, std::string* value, std::vector<std::string> choices, std::string help) {
  return {.key = std::move(key), .value = value, .help = std::move(help), .choices = std::move(choices)};
}

Field with_aliases(Field field, std::vector<std::string> aliases) {
  field.aliases = std::move(aliases);
  return field;
}

}  // namespace

std::vector<Field> fields(Config& config) {
  ModelConfig& m = config.model;
  RopeScaling& y = m.rope_scaling;
  RouterConfig& r = config.router;
  TrainConfig& t = config.train;
  OptimConfig& o = config.optim;
  CheckpointConfig& c = config.checkpoint;
  ParallelConfig& p = config.parallel;
  return {
      choice("model.model_type", &m.model_type, {"qwen3_moe", "deepseek_v3"},
             "architecture; qwen3_moe: grouped-query attention; deepseek_v3: multi-head latent attention"),
      integer("model.vocab_size", &m.vocab_size, 0,
              "vocabulary size; 0: size of the tokenizer stored with the data"),
      integer("model.hidden_size", &m.hidden_size, 1, "hidden size D"),
      integer("model.num_hidden_layers", &m.num_hidden_layers, 1, "number of decoder layers, dense and MoE",
              kLayerLimit),
      integer("model.num_attention_heads", &m.num_attention_heads, 1, "number of query heads"),
      integer("model.num_key_value_heads", &m.num_key_value_heads, 1,
              "number of key/value heads (qwen3_moe)"),
      integer("model.head_dim", &m.head_dim, 1, "head dimension (qwen3_moe)"),
      integer("model.q_lora_rank", &m.q_lora_rank, 0,
              "low-rank dimension of queries; 0: no compression (deepseek_v3)"),
      integer("model.kv_lora_rank", &m.kv_lora_rank, 1,
              "low-rank dimension of keys and values (deepseek_v3)"),
      integer("model.qk_nope_head_dim", &m.qk_nope_head_dim, 1,
              "query/key head dimension without RoPE (deepseek_v3)"),
      integer("model.qk_rope_head_dim", &m.qk_rope_head_dim, 1,
              "query/key head dimension with RoPE (deepseek_v3)"),
      integer("model.v_head_dim", &m.v_head_dim, 1, "value head dimension (deepseek_v3)"),
      positive("model.rope_theta", &m.rope_theta, "RoPE base frequency"),
      choice("model.rope_scaling.type", &y.type, {"default", "yarn"},
             "RoPE scaling method; yarn: YaRN context extension (arXiv 2309.00071)"),
      positive("model.rope_scaling.factor", &y.factor, "ratio of extended to original context length"),
      integer("model.rope_scaling.original_max_position_embeddings", &y.original_max_position_embeddings, 1,
              "context length before YaRN"),
      positive("model.rope_scaling.beta_fast", &y.beta_fast,
               "rotations over the original context above which a frequency is not scaled"),
      positive("model.rope_scaling.beta_slow", &y.beta_slow,
               "rotations over the original context below which a frequency is divided by factor"),
      non_negative("model.rope_scaling.mscale", &y.mscale,
                   "YaRN magnitude scale of cosine and sine; 0: no scaling"),
      non_negative("model.rope_scaling.mscale_all_dim", &y.mscale_all_dim,
                   "YaRN magnitude scale of the attention logits (deepseek_v3); 0: no scaling"),
      non_negative("model.rope_scaling.attention_factor", &y.attention_factor,
                   "explicit scale of cosine and sine; 0: computed from factor and mscale"),
      flag("model.rope_scaling.truncate", &y.truncate,
           "round the bounds of the YaRN ramp to integer dimensions"),
      flag("model.rope_interleave", &m.rope_interleave, "interleave rotary pairs (deepseek_v3)"),
      non_negative("model.rms_norm_eps", &m.rms_norm_eps, "epsilon of RMSNorm"),
      flag("model.tie_word_embeddings", &m.tie_word_embeddings,
           "share weights of the embedding and the output layer"),
      integer("model.max_position_embeddings", &m.max_position_embeddings, 1, "maximum sequence length"),
      integer("model.intermediate_size", &m.intermediate_size, 1, "intermediate size of dense layers"),
      integer("model.first_k_dense_replace", &m.first_k_dense_replace, 0,
              "number of leading dense layers (deepseek_v3)"),
      integer("model.decoder_sparse_step", &m.decoder_sparse_step, 1,
              "every n-th layer is a MoE layer (qwen3_moe)"),
      integers("model.mlp_only_layers", &m.mlp_only_layers, 0,
               "indices of dense decoder layers, zero-based (qwen3_moe)"),
      with_aliases(
          integer("model.num_experts", &m.num_experts, 1, "number of routed experts E per MoE layer"),
          {"model.n_routed_experts", "model.num_local_experts"}),
      integer("model.num_experts_per_tok", &m.num_experts_per_tok, 1, "number of routed experts K per token"),
      integer("model.moe_intermediate_size", &m.moe_intermediate_size, 1, "intermediate size F of an expert"),
      integer("model.n_shared_experts", &m.n_shared_experts, 0, "number of shared experts (deepseek_v3)"),
      choice("model.scoring_func", &m.scoring_func, {"softmax", "sigmoid"},
             "score function of top-k selection; the history always uses softmax"),
      flag("model.norm_topk_prob", &m.norm_topk_prob,
           "normalize the weights of a token's experts to sum to 1"),
      non_negative("model.norm_topk_eps", &m.norm_topk_eps, "epsilon added to the sum in norm_topk_prob"),
      positive("model.routed_scaling_factor", &m.routed_scaling_factor,
               "scaling factor of the routed weights (deepseek_v3)"),
      integer("model.n_group", &m.n_group, 1, "number of expert groups (deepseek_v3)"),
      integer("model.topk_group", &m.topk_group, 1,
              "number of expert groups selected per token (deepseek_v3)"),
      non_negative("model.initializer_range", &m.initializer_range,
                   "standard deviation of initial weights, except the router's"),

      choice("router.kind", &r.kind, {"baseline", "hero"},
             "router type; hero uses the routing history of preceding layers"),
      integer("router.window", &r.window, 0, "number of most recent visible layers in the history; 0: all"),
      flag("router.scale", &r.scale,
           "scale the history by rho to the RMS of the hidden state; false: rho = 1"),
      integer("router.stages", &r.stages, 1, "number of router stages; the history does not cross stages"),
      integers("router.stage_sizes", &r.stage_sizes, 1,
               "number of MoE layers per router stage; []: as equal as possible"),
      non_negative("router.eps", &r.eps, "epsilon added to RMS(H) in rho"),
      choice("router.init", &r.init, {"uniform", "zero"},
             "initial W = [W_O | W_R]; uniform: U(-b, b) with b = 1/sqrt(D + (l-1)E); zero: W_R = 0 and the "
             "baseline's W_O, so that training starts like a baseline with the same seed"),
      flag("router.detach", &r.detach, "stop gradients through the history and rho, as in the paper"),
      choice("router.history", &r.history, {"stage", "global"},
             "visible layers: preceding layers of the same stage, or of all stages"),
      choice("router.dtype", &r.dtype, {"train", "fp32"},
             "dtype of the router and the history; train: same as train.dtype"),
      choice("router.balance", &r.balance, {"none", "micro_batch", "sequence", "global", "pooled"},
             "scope of the expert shares f_e in the balance loss E * sum_e f_e P_e; global: the previous "
             "step's global batch (1/E in the first step), because the current shares are complete only "
             "after the backward passes; pooled: all layers together, as in transformers"),
      non_negative("router.balance_loss", &r.balance_loss, "coefficient of the balance loss"),
      non_negative("router.z_loss", &r.z_loss, "coefficient of the router z-loss"),
      non_negative(
          "router.coupling_loss", &r.coupling_loss,
          "coefficient of R_cp (arXiv 2602.14159): the negative product of adjacent layers' top-k masses, "
          "averaged over tokens and layer pairs"),
      non_negative("router.bias_update_rate", &r.bias_update_rate,
                   "update rate of the expert bias (deepseek_v3)"),
      non_negative("router.capacity_factor", &r.capacity_factor,
                   "training: expert capacity as a multiple of T*K/E tokens of a micro-batch; 0: dropless"),
      non_negative(
          "router.eval_capacity_factor", &r.eval_capacity_factor,
          "evaluation and inference: expert capacity over the tokens of a forward pass; results then "
          "depend on the batch, and exported models ignore this option; 0: dropless"),
      choice("router.drop_policy", &r.drop_policy, {"probs", "position"},
             "assignments dropped first: those with the smallest weight, or of the last tokens"),
      fraction("router.jitter", &r.jitter,
               "training: multiply router inputs by uniform noise within 1 +- this value"),
      flag("router.force_balance", &r.force_balance,
           "training: assign tokens to experts round-robin, for benchmarking"),

      integer("train.seed", &t.seed, 0, "random seed of initial weights and data order", kSeedLimit),
      integer("train.steps", &t.steps, 1, "number of optimizer steps"),
      integer("train.sequence", &t.sequence, 1, "sequence length in tokens"),
      integer("train.micro_batch", &t.micro_batch, 1, "sequences per forward and backward pass"),
      integer("train.global_batch", &t.global_batch, 1, "sequences per optimizer step, over all data ranks"),
      choice("train.dtype", &t.dtype, {"bf16", "fp32", "fp64"},
             "dtype of activations and compute weights; fp64 is for tests"),
      choice("train.device", &t.device, {"auto", "cpu", "cuda"},
             "compute device; auto: cuda if a GPU and libhero_cuda.so are available"),
      flag("train.cuda_graph", &t.cuda_graph,
           "capture a training step in a CUDA graph and replay it (one rank; not with fp64, recompute, "
           "jitter or a capacity)"),
      flag("train.recompute", &t.recompute, "recompute activations in the backward pass to save memory"),
      choice("train.trainable", &t.trainable, {"all", "routers"},
             "weights to train; routers: all other weights are frozen"),
      integer("train.threads", &t.threads, 0, "number of CPU threads; 0: all cores"),
      integer("train.routing_every", &t.routing_every, 1,
              "steps between snapshots of expert shares in routing.jsonl"),

      positive("optim.lr", &o.lr, "peak learning rate"),
      non_negative("optim.min_lr", &o.min_lr, "final learning rate of the cosine schedule"),
      integer("optim.warmup_steps", &o.warmup_steps, 0,
              "number of linear warmup steps, included in train.steps"),
      fraction("optim.beta1", &o.beta1, "AdamW beta1"),
      fraction("optim.beta2", &o.beta2, "AdamW beta2"),
      positive("optim.eps", &o.eps, "AdamW epsilon"),
      non_negative("optim.weight_decay", &o.weight_decay, "decoupled weight decay of AdamW"),
      non_negative("optim.clip_norm", &o.clip_norm, "maximum gradient norm; 0: no clipping"),

      integer("checkpoint.every", &c.every, 0, "steps between checkpoints; 0: only after the last step"),
      integer("checkpoint.keep", &c.keep, 0, "number of most recent checkpoints to keep; 0: all"),
      flag("checkpoint.asynchronous", &c.asynchronous,
           "write checkpoints in the background, from a copy in CPU memory"),

      integer("parallel.data", &p.data, 0,
              "data parallel size, over which the optimizer state is sharded; "
              "0: number of ranks divided by parallel.pipeline"),
      integer("parallel.pipeline", &p.pipeline, 1, "pipeline parallel size"),
      integer("parallel.expert", &p.expert, 1, "expert parallel size, within the data ranks"),
      integer("parallel.chunks", &p.chunks, 1, "model chunks per pipeline rank (interleaved schedule)"),
      integers("parallel.chunk_sizes", &p.chunk_sizes, 1,
               "decoder layers per model chunk; []: router stages if their number matches, else equal sizes"),
      choice("parallel.schedule", &p.schedule, {"1f1b", "interleaved", "zero_bubble"}, "pipeline schedule"),
      integer("parallel.history_top", &p.history_top, 0,
              "send only this many largest probabilities per layer across pipeline boundaries, and the rest "
              "as one mass; changes the model; 0: send all"),
      positive("parallel.timeout", &p.timeout,
               "seconds without a heartbeat after which a rank is considered lost"),
  };
}

}  // namespace hero
