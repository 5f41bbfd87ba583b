// Bounds of single values and consistency between options. Every message names the key to change, its value
// and the keys that constrain it.
#include <algorithm>

#include "config/config.h"
#include "config/data_phases.h"
#include "config/fields.h"
#include "config/router_kinds.h"
#include "io/error.h"
#include "io/one_line.h"

namespace hero {
namespace {

void require(bool holds, const std::string& key, const FieldValue& found, const std::string& expected) {
  if (!holds) throw UserError(key + ": found " + one_line(literal(found)) + ", expected " + expected);
}

void check_bounds(const Config& config) {
  Config copy = config;
  for (const Field& field : fields(copy)) {
    const FieldValue value = read(field);
    require(assign(field, value), field.key, value, expected(field));
  }
}

void check_regular_layers(const ModelConfig& m) {
  const std::string why = "; only model.model_type = \"qwen3_moe\" supports ";
  require(m.decoder_sparse_step == 1, "model.decoder_sparse_step", m.decoder_sparse_step,
          "1" + why + "a sparse step");
  require(m.mlp_only_layers.empty(), "model.mlp_only_layers", m.mlp_only_layers,
          "[]" + why + "a list of dense layers");
}

void check_grouped_query(const Config& config) {
  const ModelConfig& m = config.model;
  const std::string why = "; only model.model_type = \"deepseek_v3\" supports ";
  require(m.num_attention_heads % m.num_key_value_heads == 0, "model.num_attention_heads",
          m.num_attention_heads,
          "a multiple of " + format_option("model.num_key_value_heads", m.num_key_value_heads));
  require(m.head_dim % 2 == 0, "model.head_dim", m.head_dim,
          "an even number: RoPE rotates pairs of dimensions");
  if (!m.type().has_dense_layers) check_regular_layers(m);
  require(m.norm_topk_prob || !m.type().always_norm_topk_prob, "model.norm_topk_prob", m.norm_topk_prob,
          "true with " + format_option("model.model_type", name_of(m.model_type)));
  // transformers has no key for the head dimension of these models.
  require(m.type().qk_norm != QkNorm::kProjection || m.head_dim * m.num_attention_heads == m.hidden_size,
          "model.head_dim", m.head_dim,
          format_option("model.hidden_size", m.hidden_size) + " divided by " +
              format_option("model.num_attention_heads", m.num_attention_heads) + " with " +
              format_option("model.model_type", name_of(m.model_type)));
  require(m.n_shared_experts == 0, "model.n_shared_experts", m.n_shared_experts,
          "0" + why + "shared experts");
  require(m.first_k_dense_replace == 0, "model.first_k_dense_replace", m.first_k_dense_replace,
          "0" + why + "leading dense layers");
  require(!m.has_sigmoid_scores(), "model.scoring_func", name_of(m.scoring_func),
          "softmax" + why + "sigmoid scores");
  require(m.num_nextn_predict_layers == 0, "model.num_nextn_predict_layers", m.num_nextn_predict_layers,
          "0" + why + "multi-token prediction modules");
  require(m.n_group == 1, "model.n_group", m.n_group, "1" + why + "expert groups");
  require(m.routed_scaling_factor == 1, "model.routed_scaling_factor", m.routed_scaling_factor,
          "1" + why + "a scaling factor");
  require(config.router.bias_update_rate == 0, "router.bias_update_rate", config.router.bias_update_rate,
          "0" + why + "an expert bias");
}

void check_deepseek(const ModelConfig& m) {
  require(m.qk_rope_head_dim % 2 == 0, "model.qk_rope_head_dim", m.qk_rope_head_dim,
          "an even number: RoPE rotates pairs of dimensions");
  check_regular_layers(m);
}

void check_experts(const ModelConfig& m) {
  require(m.first_k_dense_replace < m.num_hidden_layers, "model.first_k_dense_replace",
          m.first_k_dense_replace,
          "less than " + format_option("model.num_hidden_layers", m.num_hidden_layers));
  require(m.num_experts_per_tok <= m.num_experts, "model.num_experts_per_tok", m.num_experts_per_tok,
          "at most " + format_option("model.num_experts", m.num_experts));
  require(m.num_experts % m.n_group == 0, "model.num_experts", m.num_experts,
          "a multiple of " + format_option("model.n_group", m.n_group));
  require(m.topk_group <= m.n_group, "model.topk_group", m.topk_group,
          "at most " + format_option("model.n_group", m.n_group));
  const int64_t group = m.num_experts / m.n_group;
  require(m.n_group == 1 || group >= 2, "model.n_group", m.n_group,
          "at least 2 experts per group with " + format_option("model.num_experts", m.num_experts) +
              ": the two best experts determine the score of a group");
  require(m.num_experts_per_tok <= group * m.topk_group, "model.num_experts_per_tok", m.num_experts_per_tok,
          "at most " + std::to_string(group * m.topk_group) + ", the number of experts in " +
              format_option("model.topk_group", m.topk_group) + " groups");
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
            std::to_string(given) + ", the length of " + format_option("router.stage_sizes", r.stage_sizes));
  }
  require(r.coupling_loss == 0 || layers + config.model.num_nextn_predict_layers >= 2, "router.coupling_loss",
          r.coupling_loss, "0: with one MoE layer there are no adjacent layers");
  require(r.detach || !config.train.recompute, "router.detach", r.detach,
          "true: gradient through the history is not supported with " +
              format_option("train.recompute", config.train.recompute));
}

void check_layers_and_positions(const ModelConfig& m) {
  require(std::ranges::all_of(m.mlp_only_layers, [&](int64_t i) { return i < m.num_hidden_layers; }),
          "model.mlp_only_layers", m.mlp_only_layers,
          "layer indices below " + format_option("model.num_hidden_layers", m.num_hidden_layers));
  const RopeScaling& y = m.rope_scaling;
  require(y.beta_slow <= y.beta_fast, "model.rope_scaling.beta_slow", y.beta_slow,
          "at most " + format_option("model.rope_scaling.beta_fast", y.beta_fast));
}

void check_training(const Config& config) {
  const TrainConfig& t = config.train;
  const OptimConfig& o = config.optim;
  require(t.global_batch % t.micro_batch == 0, "train.global_batch", t.global_batch,
          "a multiple of " + format_option("train.micro_batch", t.micro_batch));
  require(t.sequence <= config.model.max_position_embeddings, "train.sequence", t.sequence,
          "at most " + format_option("model.max_position_embeddings", config.model.max_position_embeddings));
  const int64_t modules = config.model.num_nextn_predict_layers;
  require(modules < t.sequence, "model.num_nextn_predict_layers", modules,
          "less than " + format_option("train.sequence", t.sequence) +
              ": the last module predicts the token that many positions after the next");
  const RouterConfig& r = config.router;
  require(!t.cuda_graph || !t.recompute, "train.cuda_graph", t.cuda_graph,
          "false with " + format_option("train.recompute", t.recompute));
  require(!t.cuda_graph || t.dtype != Dtype::kFp64, "train.cuda_graph", t.cuda_graph,
          "false with " + format_option("train.dtype", name_of(t.dtype)));
  require(!t.cuda_graph || r.jitter == 0, "train.cuda_graph", t.cuda_graph,
          "false with " + format_option("router.jitter", r.jitter));
  require(!t.cuda_graph || r.capacity_factor == 0, "train.cuda_graph", t.cuda_graph,
          "false with " + format_option("router.capacity_factor", r.capacity_factor));
  require(!t.cuda_graph || t.skip_nonfinite == 0, "train.cuda_graph", t.cuda_graph,
          "false with " + format_option("train.skip_nonfinite", t.skip_nonfinite));
  require(!t.cuda_graph || t.spike_skip == 0, "train.cuda_graph", t.cuda_graph,
          "false with " + format_option("train.spike_skip", t.spike_skip));
  require(!t.cuda_graph || t.norms_every == 0, "train.cuda_graph", t.cuda_graph,
          "false with " + format_option("train.norms_every", t.norms_every));
  // A graph replays fixed targets and a fixed normalizer of the loss.
  require(!t.cuda_graph || !t.loss_mask, "train.cuda_graph", t.cuda_graph,
          "false with " + format_option("train.loss_mask", t.loss_mask));
  require(!t.cuda_graph || t.pack == Packing::kConcat, "train.cuda_graph", t.cuda_graph,
          "false with " + format_option("train.pack", name_of(t.pack)));
  // Documents differ between micro-batches; a graph replays those of the first.
  require(!t.cuda_graph || !t.document_mask, "train.cuda_graph", t.cuda_graph,
          "false with " + format_option("train.document_mask", t.document_mask));
  require(!t.cuda_graph || !t.document_positions, "train.cuda_graph", t.cuda_graph,
          "false with " + format_option("train.document_positions", t.document_positions));
  require(o.history_weight_decay >= 0 || o.history_weight_decay == -1, "optim.history_weight_decay",
          o.history_weight_decay, "-1 (optim.weight_decay) or a number of at least 0");
  require(o.schedule == LrSchedule::kConstant || o.min_lr <= o.lr, "optim.min_lr", o.min_lr,
          "at most " + format_option("optim.lr", o.lr));
  require(o.warmup_steps <= t.steps, "optim.warmup_steps", o.warmup_steps,
          "at most " + format_option("train.steps", t.steps));
  require(o.schedule != LrSchedule::kWsd || o.decay_steps <= t.steps - o.warmup_steps, "optim.decay_steps",
          o.decay_steps,
          "at most " + std::to_string(t.steps - o.warmup_steps) + ", " +
              format_option("train.steps", t.steps) + " minus " +
              format_option("optim.warmup_steps", o.warmup_steps) + ", with " +
              format_option("optim.schedule", name_of(o.schedule)));
}

void check_checkpoints(const Config& config) {
  const CheckpointConfig& c = config.checkpoint;
  const std::string& offload = config.optim.offload_folder;
  require(offload.empty() || !c.asynchronous || c.every == 0, "checkpoint.asynchronous", c.asynchronous,
          "false with " + format_option("optim.offload_folder", offload) +
              ": an asynchronous checkpoint copies the optimizer's state to memory");
  require(!c.keep_best || config.eval.every > 0, "checkpoint.keep_best", c.keep_best,
          "false with " + format_option("eval.every", config.eval.every));
  require(!c.keep_best || c.every % config.eval.every == 0, "checkpoint.every", c.every,
          "a multiple of " + format_option("eval.every", config.eval.every) + " with " +
              format_option("checkpoint.keep_best", c.keep_best) + ": each checkpoint needs a validation");
}

// `bounds`: first decoder layer of each model chunk, then the number of layers.
void check_shared_weights(const Config& config, const std::vector<int64_t>& bounds) {
  if (!router_kind_info(config.router).shares_weights) return;
  const auto numbers = moe_layer_numbers(config.model);
  const auto stage_of = stage_of_layers(moe_layers(config.model), config.router);
  int64_t last = -1;  // router stage of the last MoE layer of the preceding chunks
  for (size_t chunk = 0; chunk + 1 < bounds.size(); ++chunk) {
    const int64_t before = last;
    for (int64_t i = bounds[chunk]; i < bounds[chunk + 1]; ++i) {
      if (numbers[i] == 0) continue;
      last = stage_of[numbers[i] - 1];
      require(last != before, "parallel.pipeline", config.parallel.pipeline,
              "model chunks that contain whole router stages with " +
                  format_option("router.kind", config.router.kind) +
                  ": the routers of a stage share weights (router.stages, parallel.chunk_sizes)");
    }
  }
}

void check_parallel(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const TrainConfig& t = config.train;
  const int64_t data = std::max<int64_t>(p.data, 1), chunks = p.pipeline * p.chunks;
  require(p.data == 0 || data % p.expert == 0, "parallel.expert", p.expert,
          "a divisor of " + format_option("parallel.data", p.data));
  require(config.model.num_experts % p.expert == 0, "parallel.expert", p.expert,
          "a divisor of " + format_option("model.num_experts", config.model.num_experts));
  require(t.global_batch % (t.micro_batch * data) == 0, "train.global_batch", t.global_batch,
          "a multiple of " + format_option("train.micro_batch", t.micro_batch) + " times " +
              format_option("parallel.data", p.data));
  require(p.chunks == 1 || p.schedule == PipelineSchedule::kInterleaved, "parallel.schedule",
          name_of(p.schedule), "interleaved with " + format_option("parallel.chunks", p.chunks));
  require(p.schedule == PipelineSchedule::k1F1B || p.pipeline > 1, "parallel.schedule", name_of(p.schedule),
          "1f1b with " + format_option("parallel.pipeline", p.pipeline));
  require(p.history_top == 0 || config.model.num_experts <= 1 << 15, "parallel.history_top", p.history_top,
          "0 with more than 32768 experts: messages have ids of 16 bits");
  require(p.history_top < config.model.num_experts, "parallel.history_top", p.history_top,
          "less than " + format_option("model.num_experts", config.model.num_experts));
  if (chunks == 1) return;
  const auto bounds = chunk_bounds(config, chunks);
  const int64_t micro_batches = t.global_batch / (t.micro_batch * data);
  require(p.schedule != PipelineSchedule::kInterleaved || micro_batches % p.pipeline == 0,
          "train.global_batch", t.global_batch,
          "a number of micro-batches per data rank (" + std::to_string(micro_batches) +
              ") that is a multiple of " + format_option("parallel.pipeline", p.pipeline) + " (interleaved)");
  require(!config.model.tie_word_embeddings, "model.tie_word_embeddings", config.model.tie_word_embeddings,
          "false with " + format_option("parallel.pipeline", p.pipeline) +
              ": the embedding and the output layer are on different ranks");
  const RouterConfig& r = config.router;
  require(r.detach, "router.detach", r.detach,
          "true with " + format_option("parallel.pipeline", p.pipeline) +
              ": pipeline stages send the history without gradients");
  check_shared_weights(config, bounds);
  require(r.balance != BalanceScope::kPooled, "router.balance", name_of(r.balance),
          "a value other than pooled with " + format_option("parallel.pipeline", p.pipeline) +
              ": pooled needs all layers on one rank");
}

}  // namespace

void check(const Config& config) {
  check_bounds(config);
  if (config.model.is_deepseek()) {
    check_deepseek(config.model);
  } else {
    check_grouped_query(config);
  }
  check_experts(config.model);
  check_layers_and_positions(config.model);
  check_router(config);
  check_training(config);
  check_data_phases(config);
  check_checkpoints(config);
  check_parallel(config);
}

}  // namespace hero
