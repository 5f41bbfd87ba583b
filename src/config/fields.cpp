// The list of knobs. Order here is the order of --help and of the dump.
#include "config/fields.h"

#include <utility>

namespace hero {
namespace {

// Sizes end at 2^31 - 1, so that a product of two fits 64 bits; the seed below 2^53, which every JSON reader
// keeps exact.
constexpr double kIntegerLimit = 2147483647;
constexpr double kLayerLimit = 65535;
constexpr double kSeedLimit = 9007199254740991;

Field integer(std::string key, int64_t* value, double min, std::string help, double max = kIntegerLimit) {
  return {.key = std::move(key), .value = value, .help = std::move(help), .min = min, .max = max};
}

Field number(std::string key, double* value, std::string help) {
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

Field also(Field field, std::vector<std::string> aliases) {
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
             "architecture: grouped-query (qwen3_moe) or latent attention (deepseek_v3)"),
      integer("model.vocab_size", &m.vocab_size, 0, "0: that of the tokenizer beside the data"),
      integer("model.hidden_size", &m.hidden_size, 1, "width D of the residual stream"),
      integer("model.num_hidden_layers", &m.num_hidden_layers, 1, "transformer layers, dense and MoE",
              kLayerLimit),
      integer("model.num_attention_heads", &m.num_attention_heads, 1, "query heads"),
      integer("model.num_key_value_heads", &m.num_key_value_heads, 1, "key/value heads (qwen3_moe)"),
      integer("model.head_dim", &m.head_dim, 1, "size of a head (qwen3_moe)"),
      integer("model.q_lora_rank", &m.q_lora_rank, 0, "query rank; 0: straight from the input (deepseek_v3)"),
      integer("model.kv_lora_rank", &m.kv_lora_rank, 1, "key/value rank (deepseek_v3)"),
      integer("model.qk_nope_head_dim", &m.qk_nope_head_dim, 1,
              "query/key part without position (deepseek_v3)"),
      integer("model.qk_rope_head_dim", &m.qk_rope_head_dim, 1, "rotary query/key part (deepseek_v3)"),
      integer("model.v_head_dim", &m.v_head_dim, 1, "value size of a head (deepseek_v3)"),
      positive("model.rope_theta", &m.rope_theta, "base of the rotary frequencies"),
      choice("model.rope_scaling.type", &y.type, {"default", "yarn"},
             "longer contexts by YaRN (arXiv 2309.00071)"),
      positive("model.rope_scaling.factor", &y.factor, "longest sequence over the original one"),
      integer("model.rope_scaling.original_max_position_embeddings", &y.original_max_position_embeddings, 1,
              "longest sequence before YaRN"),
      positive("model.rope_scaling.beta_fast", &y.beta_fast, "turns from which a frequency stays"),
      positive("model.rope_scaling.beta_slow", &y.beta_slow, "turns up to which it is divided by factor"),
      number("model.rope_scaling.mscale", &y.mscale, "of cosine and sine; 0: 1"),
      number("model.rope_scaling.mscale_all_dim", &y.mscale_all_dim,
             "of the attention's logits (deepseek_v3); 0: none"),
      number("model.rope_scaling.attention_factor", &y.attention_factor,
             "of cosine and sine, given outright; 0: from factor and mscale"),
      flag("model.rope_scaling.truncate", &y.truncate, "the ramp begins and ends at whole dimensions"),
      flag("model.rope_interleave", &m.rope_interleave, "rotary pairs lie side by side (deepseek_v3)"),
      number("model.rms_norm_eps", &m.rms_norm_eps, "added to the mean square"),
      flag("model.tie_word_embeddings", &m.tie_word_embeddings, "the output head is the embedding"),
      integer("model.max_position_embeddings", &m.max_position_embeddings, 1,
              "longest sequence of the model"),
      integer("model.intermediate_size", &m.intermediate_size, 1, "hidden size of the dense layers"),
      integer("model.first_k_dense_replace", &m.first_k_dense_replace, 0,
              "leading dense layers (deepseek_v3)"),
      integer("model.decoder_sparse_step", &m.decoder_sparse_step, 1,
              "every n-th layer is a MoE layer (qwen3_moe)"),
      integers("model.mlp_only_layers", &m.mlp_only_layers, 0,
               "decoder layers, from 0, that are dense (qwen3_moe)"),
      also(integer("model.num_experts", &m.num_experts, 1, "routed experts E of a layer"),
           {"model.n_routed_experts", "model.num_local_experts"}),
      integer("model.num_experts_per_tok", &m.num_experts_per_tok, 1, "routed experts K of a token"),
      integer("model.moe_intermediate_size", &m.moe_intermediate_size, 1, "hidden size F of an expert"),
      integer("model.n_shared_experts", &m.n_shared_experts, 0, "experts of every token (deepseek_v3)"),
      choice("model.scoring_func", &m.scoring_func, {"softmax", "sigmoid"},
             "scores of the sparse choice; the history is always the softmax"),
      flag("model.norm_topk_prob", &m.norm_topk_prob, "the weights of a token's experts add up to 1"),
      number("model.norm_topk_eps", &m.norm_topk_eps, "added to the sum that norm_topk_prob divides by"),
      positive("model.routed_scaling_factor", &m.routed_scaling_factor,
               "times the routed weights (deepseek_v3)"),
      integer("model.n_group", &m.n_group, 1, "groups of experts (deepseek_v3)"),
      integer("model.topk_group", &m.topk_group, 1, "groups that a token may use (deepseek_v3)"),
      number("model.initializer_range", &m.initializer_range,
             "standard deviation of initial weights, except the router's"),

      choice("router.kind", &r.kind, {"baseline", "hero"}, "hero reads the routing of preceding layers"),
      integer("router.window", &r.window, 0, "last k visible layers; 0: all"),
      flag("router.scale", &r.scale, "rho keeps the scale of the logits; false: rho = 1"),
      integer("router.stages", &r.stages, 1, "parts of the stack of MoE layers; history stays within one"),
      integers("router.stage_sizes", &r.stage_sizes, 1,
               "MoE layers of every stage; []: router.stages equal parts"),
      number("router.eps", &r.eps, "added to RMS(H) in rho"),
      choice("router.init", &r.init, {"uniform", "zero"},
             "initial W = [W_O | W_R]; uniform: U(-b, b) with b = 1/sqrt(D + (l-1)E); zero: W_R = 0 and the "
             "baseline's W_O, so that training starts as the baseline of the same seed"),
      flag("router.detach", &r.detach, "no gradient through history and rho (the paper's model)"),
      choice("router.history", &r.history, {"stage", "global"},
             "visible layers: of the same stage, or all before"),
      choice("router.dtype", &r.dtype, {"train", "fp32"}, "operands and history; train: as train.dtype"),
      choice(
          "router.balance", &r.balance, {"none", "micro_batch", "sequence", "global", "pooled"},
          "tokens over which the balance loss E * sum_e f_e P_e of a layer counts the shares f_e of the "
          "assignments; global: those of the previous step's global batch (1/E in the first step), because "
          "this step's are complete only after its backward passes; pooled: of all layers together, as "
          "transformers"),
      number("router.balance_loss", &r.balance_loss, "factor of the balance loss"),
      number("router.z_loss", &r.z_loss, "factor of the z-loss of the router's logits"),
      number(
          "router.coupling_loss", &r.coupling_loss,
          "factor of R_cp (arXiv 2602.14159): minus the product of adjacent layers' top-k masses, mean over "
          "tokens and pairs of layers"),
      number("router.bias_update_rate", &r.bias_update_rate, "step of the balancing bias (deepseek_v3)"),
      number("router.capacity_factor", &r.capacity_factor,
             "in training, an expert processes at most this times T*K/E tokens of a micro-batch; 0: all"),
      number("router.eval_capacity_factor", &r.eval_capacity_factor,
             "the same outside training, over the tokens of a forward pass: results then depend on what is "
             "computed together, and an exported folder drops nothing; 0: nothing is dropped"),
      choice("router.drop_policy", &r.drop_policy, {"probs", "position"},
             "what either capacity drops first: assignments of the smallest weight, or of the last tokens"),
      fraction("router.jitter", &r.jitter, "in training the router's input times 1 +- this"),
      flag("router.force_balance", &r.force_balance,
           "in training, experts are chosen round-robin instead of by score; for measuring speed"),

      integer("train.seed", &t.seed, 0, "of the initial weights and the order of the data", kSeedLimit),
      integer("train.steps", &t.steps, 1, "optimizer steps"),
      integer("train.sequence", &t.sequence, 1, "tokens of a sequence"),
      integer("train.micro_batch", &t.micro_batch, 1, "sequences of one forward and backward pass"),
      integer("train.global_batch", &t.global_batch, 1, "sequences of an optimizer step"),
      choice("train.dtype", &t.dtype, {"bf16", "fp32", "fp64"},
             "activations and working weights; fp64: for tests"),
      choice("train.device", &t.device, {"auto", "cpu", "cuda"},
             "where to compute; auto: cuda where there are a GPU and libhero_cuda.so"),
      flag("train.cuda_graph", &t.cuda_graph,
           "record the kernels of a step once and replay them (cuda, one rank; not in fp64, nor with "
           "recompute, jitter, capacity)"),
      flag("train.recompute", &t.recompute, "layers run again in the backward pass, to save memory"),
      choice("train.trainable", &t.trainable, {"all", "routers"},
             "weights that learn; routers: all others stay as they are"),
      integer("train.threads", &t.threads, 0, "CPU threads; 0: all cores"),
      integer("train.routing_every", &t.routing_every, 1,
              "steps between the experts' shares in routing.jsonl"),

      positive("optim.lr", &o.lr, "highest learning rate"),
      number("optim.min_lr", &o.min_lr, "learning rate at the end of the cosine"),
      integer("optim.warmup_steps", &o.warmup_steps, 0, "steps of linear warm-up, part of train.steps"),
      fraction("optim.beta1", &o.beta1, "AdamW"),
      fraction("optim.beta2", &o.beta2, "AdamW"),
      positive("optim.eps", &o.eps, "AdamW"),
      number("optim.weight_decay", &o.weight_decay, "AdamW, decoupled"),
      number("optim.clip_norm", &o.clip_norm, "largest norm of the gradient; 0: no clipping"),

      integer("checkpoint.every", &c.every, 0, "steps between checkpoints; 0: only the last"),
      integer("checkpoint.keep", &c.keep, 0, "newest checkpoints kept; 0: all"),
      flag("checkpoint.asynchronous", &c.asynchronous,
           "write while training continues, from a copy in CPU memory"),

      integer("parallel.data", &p.data, 0,
              "ranks that split the batch and the optimizer's state; 0: all that the pipeline leaves"),
      integer("parallel.pipeline", &p.pipeline, 1, "ranks that split the layers"),
      integer("parallel.expert", &p.expert, 1, "data ranks that split every MoE layer's experts"),
      integer("parallel.chunks", &p.chunks, 1, "parts of the layers on every pipeline rank (interleaved)"),
      integers("parallel.chunk_sizes", &p.chunk_sizes, 1,
               "decoder layers of every part; []: along router.stages where as many, else equal parts"),
      choice("parallel.schedule", &p.schedule, {"1f1b", "interleaved", "zero_bubble"},
             "order of forward and backward passes on a pipeline rank"),
      integer("parallel.history_top", &p.history_top, 0,
              "largest probabilities of a layer that cross a pipeline boundary, the rest as one mass: "
              "changes what "
              "is trained; 0: all"),
      positive("parallel.timeout", &p.timeout, "seconds after which a silent rank is given up"),
  };
}

}  // namespace hero
