// Values that are fine alone and contradict each other. Every message names the key to change, what it holds
// and which other keys bound it.
#include <algorithm>

#include "config/config.h"
#include "config/fields.h"
#include "config/toml_file.h"
#include "io/error.h"

namespace hero {
namespace {

void require(bool holds, const std::string& key, const Scalar& found, const std::string& expected) {
  if (!holds) throw UserError(key + ": found " + one_line(literal(found)) + ", expected " + expected);
}

// "model.num_experts = 32", to name the other side of a contradiction.
std::string named(const std::string& key, const Scalar& value) {
  return key + " = " + one_line(literal(value));
}

void check_bounds(const Config& config) {
  Config copy = config;
  for (const Field& field : fields(copy)) {
    const Scalar value = read(field);
    require(assign(field, value), field.key, value, expected(field));
  }
}

void check_qwen3(const Config& config) {
  const ModelConfig& m = config.model;
  const std::string why = "; only model.model_type = \"deepseek_v3\" has ";
  require(m.num_attention_heads % m.num_key_value_heads == 0, "model.num_attention_heads",
          m.num_attention_heads,
          "a multiple of " + named("model.num_key_value_heads", m.num_key_value_heads));
  require(m.head_dim % 2 == 0, "model.head_dim", m.head_dim,
          "an even number: rotary dimensions come in pairs");
  require(m.n_shared_experts == 0, "model.n_shared_experts", m.n_shared_experts,
          "0" + why + "shared experts");
  require(m.first_k_dense_replace == 0, "model.first_k_dense_replace", m.first_k_dense_replace,
          "0" + why + "leading dense layers");
  require(m.scoring_func == "softmax", "model.scoring_func", m.scoring_func,
          "softmax" + why + "sigmoid scores");
  require(m.n_group == 1, "model.n_group", m.n_group, "1" + why + "groups of experts");
  require(m.routed_scaling_factor == 1, "model.routed_scaling_factor", m.routed_scaling_factor,
          "1" + why + "this factor");
  require(config.router.bias_update_rate == 0, "router.bias_update_rate", config.router.bias_update_rate,
          "0" + why + "a balancing bias");
}

void check_deepseek(const ModelConfig& m) {
  require(m.qk_rope_head_dim % 2 == 0, "model.qk_rope_head_dim", m.qk_rope_head_dim,
          "an even number: rotary dimensions come in pairs");
  const std::string why = "; only model.model_type = \"qwen3_moe\" has ";
  require(m.decoder_sparse_step == 1, "model.decoder_sparse_step", m.decoder_sparse_step,
          "1" + why + "a step of MoE layers");
  require(m.mlp_only_layers.empty(), "model.mlp_only_layers", m.mlp_only_layers,
          "[]" + why + "dense layers by number");
}

void check_experts(const ModelConfig& m) {
  require(m.first_k_dense_replace < m.num_hidden_layers, "model.first_k_dense_replace",
          m.first_k_dense_replace, "less than " + named("model.num_hidden_layers", m.num_hidden_layers));
  require(m.num_experts_per_tok <= m.num_experts, "model.num_experts_per_tok", m.num_experts_per_tok,
          "at most " + named("model.num_experts", m.num_experts));
  require(m.num_experts % m.n_group == 0, "model.num_experts", m.num_experts,
          "a multiple of " + named("model.n_group", m.n_group));
  require(m.topk_group <= m.n_group, "model.topk_group", m.topk_group,
          "at most " + named("model.n_group", m.n_group));
  const int64_t group = m.num_experts / m.n_group;
  require(m.n_group == 1 || group >= 2, "model.n_group", m.n_group,
          "groups of at least 2 of " + named("model.num_experts", m.num_experts) +
              ": the best two experts rank a group");
  require(m.num_experts_per_tok <= group * m.topk_group, "model.num_experts_per_tok", m.num_experts_per_tok,
          "at most " + std::to_string(group * m.topk_group) + ", the experts of " +
              named("model.topk_group", m.topk_group) + " groups");
}

void check_router(const Config& config) {
  const RouterConfig& r = config.router;
  const int64_t layers = moe_layers(config.model);
  require(layers > 0, "model.decoder_sparse_step", config.model.decoder_sparse_step,
          "at least one MoE layer among model.num_hidden_layers = " +
              std::to_string(config.model.num_hidden_layers));
  require(r.stages <= layers, "router.stages", r.stages,
          "at most the " + std::to_string(layers) + " MoE layers");
  if (!r.stage_sizes.empty()) {
    stage_of_layers(layers, r);
    const auto given = static_cast<int64_t>(r.stage_sizes.size());
    require(r.stages == given, "router.stages", r.stages,
            std::to_string(given) + ", the length of " + named("router.stage_sizes", r.stage_sizes));
  }
  require(r.coupling_loss == 0 || layers >= 2, "router.coupling_loss", r.coupling_loss,
          "0: with one MoE layer there are no adjacent layers");
  require(r.detach || !config.train.recompute, "router.detach", r.detach,
          "true: gradient through the history is not supported with " +
              named("train.recompute", config.train.recompute));
}

void check_layers_and_positions(const ModelConfig& m) {
  require(std::ranges::all_of(m.mlp_only_layers, [&](int64_t i) { return i < m.num_hidden_layers; }),
          "model.mlp_only_layers", m.mlp_only_layers,
          "numbers below " + named("model.num_hidden_layers", m.num_hidden_layers));
  const RopeScaling& y = m.rope_scaling;
  require(y.beta_slow <= y.beta_fast, "model.rope_scaling.beta_slow", y.beta_slow,
          "at most " + named("model.rope_scaling.beta_fast", y.beta_fast));
}

void check_training(const Config& config) {
  const TrainConfig& t = config.train;
  const OptimConfig& o = config.optim;
  require(t.global_batch % t.micro_batch == 0, "train.global_batch", t.global_batch,
          "a multiple of " + named("train.micro_batch", t.micro_batch));
  require(t.sequence <= config.model.max_position_embeddings, "train.sequence", t.sequence,
          "at most " + named("model.max_position_embeddings", config.model.max_position_embeddings));
  const RouterConfig& r = config.router;
  require(!t.cuda_graph || !t.recompute, "train.cuda_graph", t.cuda_graph,
          "false with " + named("train.recompute", t.recompute));
  require(!t.cuda_graph || t.dtype != "fp64", "train.cuda_graph", t.cuda_graph,
          "false with " + named("train.dtype", t.dtype));
  require(!t.cuda_graph || r.jitter == 0, "train.cuda_graph", t.cuda_graph,
          "false with " + named("router.jitter", r.jitter));
  require(!t.cuda_graph || r.capacity_factor == 0, "train.cuda_graph", t.cuda_graph,
          "false with " + named("router.capacity_factor", r.capacity_factor));
  require(o.min_lr <= o.lr, "optim.min_lr", o.min_lr, "at most " + named("optim.lr", o.lr));
  require(o.warmup_steps <= t.steps, "optim.warmup_steps", o.warmup_steps,
          "at most " + named("train.steps", t.steps));
}

void check_parallel(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const TrainConfig& t = config.train;
  const int64_t data = std::max<int64_t>(p.data, 1), parts = p.pipeline * p.chunks;
  require(p.data == 0 || data % p.expert == 0, "parallel.expert", p.expert,
          "a divisor of " + named("parallel.data", p.data));
  require(config.model.num_experts % p.expert == 0, "parallel.expert", p.expert,
          "a divisor of " + named("model.num_experts", config.model.num_experts));
  require(t.global_batch % (t.micro_batch * data) == 0, "train.global_batch", t.global_batch,
          "a multiple of " + named("train.micro_batch", t.micro_batch) + " times " +
              named("parallel.data", p.data));
  require(p.chunks == 1 || p.schedule == "interleaved", "parallel.schedule", p.schedule,
          "interleaved with " + named("parallel.chunks", p.chunks));
  require(p.schedule == "1f1b" || p.pipeline > 1, "parallel.schedule", p.schedule,
          "1f1b with " + named("parallel.pipeline", p.pipeline));
  require(p.history_top < config.model.num_experts, "parallel.history_top", p.history_top,
          "less than " + named("model.num_experts", config.model.num_experts));
  if (parts == 1) return;
  const auto bounds = chunk_bounds(config, parts);
  const int64_t micro_batches = t.global_batch / (t.micro_batch * data);
  require(p.schedule != "interleaved" || micro_batches % p.pipeline == 0, "train.global_batch",
          t.global_batch,
          "micro-batches of a data rank (" + std::to_string(micro_batches) + ") that are a multiple of " +
              named("parallel.pipeline", p.pipeline) + " (interleaved)");
  require(!config.model.tie_word_embeddings, "model.tie_word_embeddings", config.model.tie_word_embeddings,
          "false with " + named("parallel.pipeline", p.pipeline) +
              ": embedding and output projection lie on different ranks");
  const RouterConfig& r = config.router;
  require(r.detach, "router.detach", r.detach,
          "true with " + named("parallel.pipeline", p.pipeline) + ": no gradient crosses with the history");
  require(r.balance != "pooled", "router.balance", r.balance,
          "another one than pooled with " + named("parallel.pipeline", p.pipeline) +
              ": it needs all layers on one rank");
}

}  // namespace

void check(const Config& config) {
  check_bounds(config);
  if (config.model.model_type == "qwen3_moe") {
    check_qwen3(config);
  } else {
    check_deepseek(config.model);
  }
  check_experts(config.model);
  check_layers_and_positions(config.model);
  check_router(config);
  check_training(config);
  check_parallel(config);
}

}  // namespace hero
