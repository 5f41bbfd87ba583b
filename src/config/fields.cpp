// The list of options, in the order of --help and of the dump. model_fields.cpp has the section [model].
#include "config/fields.h"

#include "config/declare_fields.h"
#include "config/router_kinds.h"

namespace hero {
namespace {

using namespace declare;

Field router_kind_field(RouterConfig& r) {
  std::vector<std::string> names;
  std::string help = "router type";
  for (const RouterKindInfo& kind : router_kinds()) {
    names.push_back(kind.name);
    if (!kind.description.empty()) help += "; " + kind.name + " " + kind.description;
  }
  return {.key = "router.kind", .attributes = kModel, .value = &r.kind, .help = help, .choices = names};
}

std::vector<Field> router_fields(RouterConfig& r) {
  return {
      router_kind_field(r),
      integer("router.window", kModel | kHistoryOnly | kSelectsHistory, &r.window, 0,
              "number of most recent visible layers in the history; 0: all"),
      flag("router.scale", kModel | kHistoryOnly, &r.scale,
           "scale the history by rho to the RMS of the hidden state; false: rho = 1"),
      integer("router.stages", kModel | kHistoryOnly | kSetsChunks | kSelectsHistory, &r.stages, 1,
              "number of router stages; the history does not cross stages"),
      integers("router.stage_sizes", kModel | kHistoryOnly | kSetsChunks | kSelectsHistory, &r.stage_sizes, 1,
               "number of MoE layers per router stage; []: as equal as possible"),
      non_negative("router.eps", kModel | kHistoryOnly, &r.eps, "epsilon added to RMS(H) in rho"),
      integer("router.state_size", kModel, &r.state_size, 1, "width of the GRU's state"),
      choice("router.init", kFixedOnResume | kHistoryOnly, &r.init,
             "initial W = [W_O | W_R]; uniform: U(-b, b) with b = 1/sqrt(D + (l-1)E); zero: W_R = 0 and the "
             "baseline's W_O, so that training starts like a baseline with the same seed"),
      flag("router.detach", kModel | kHistoryOnly, &r.detach,
           "stop gradients through the history and rho, as in the paper, or through the GRU's state"),
      choice("router.history", kModel | kHistoryOnly | kSelectsHistory, &r.history,
             "visible layers: preceding layers of the same stage, or of all stages"),
      choice("router.dtype", kFixedOnResume, &r.dtype,
             "dtype of the router and the history; train: same as train.dtype"),
      choice("router.balance", kFixedOnResume | kInConfigJson, &r.balance,
             "scope of the expert shares f_e in the balance loss E * sum_e f_e P_e; global: the previous "
             "step's global batch (1/E in the first step), because the current shares are complete only "
             "after the backward passes; pooled: all layers together, as in transformers"),
      non_negative("router.balance_loss", kFixedOnResume | kInConfigJson, &r.balance_loss,
                   "coefficient of the balance loss"),
      non_negative("router.z_loss", kFixedOnResume, &r.z_loss, "coefficient of the router z-loss"),
      non_negative(
          "router.coupling_loss", kFixedOnResume, &r.coupling_loss,
          "coefficient of R_cp (arXiv 2602.14159): the negative product of adjacent layers' top-k masses, "
          "averaged over tokens and layer pairs"),
      non_negative("router.bias_update_rate", kFixedOnResume | kDeepseekOnly, &r.bias_update_rate,
                   "update rate of the expert bias (deepseek_v3)"),
      non_negative("router.capacity_factor", kFixedOnResume, &r.capacity_factor,
                   "training: expert capacity as a multiple of T*K/E tokens of a micro-batch; 0: dropless"),
      non_negative(
          "router.eval_capacity_factor", kFixedOnResume, &r.eval_capacity_factor,
          "evaluation and inference: expert capacity over the tokens of a forward pass; results then "
          "depend on the batch, and exported models ignore this option; 0: dropless"),
      choice("router.drop_policy", kFixedOnResume, &r.drop_policy,
             "assignments dropped first: those with the smallest weight, or of the last tokens"),
      fraction("router.jitter", kFixedOnResume, &r.jitter,
               "training: multiply router inputs by uniform noise within 1 +- this value"),
      flag("router.force_balance", kFixedOnResume, &r.force_balance,
           "training: assign tokens to experts round-robin, for benchmarking"),
  };
}

// The sections [train], [optim], [eval], [checkpoint] and [parallel].
std::vector<Field> training_fields(Config& config) {
  TrainConfig& t = config.train;
  OptimConfig& o = config.optim;
  EvalConfig& e = config.eval;
  CheckpointConfig& c = config.checkpoint;
  ParallelConfig& p = config.parallel;
  return {
      integer("train.seed", kFixedOnResume | kEqualInStudy, &t.seed, 0,
              "random seed of initial weights and data order", kSeedLimit),
      integer("train.steps", kMayChangeOnResume | kEqualInStudy, &t.steps, 1, "number of optimizer steps"),
      integer("train.sequence", kFixedOnResume | kEqualInStudy, &t.sequence, 1, "sequence length in tokens"),
      integer("train.micro_batch", kFixedOnResume, &t.micro_batch, 1,
              "sequences per forward and backward pass"),
      integer("train.global_batch", kFixedOnResume | kEqualInStudy, &t.global_batch, 1,
              "sequences per optimizer step, over all data ranks"),
      choice("train.dtype", kFixedOnResume, &t.dtype,
             "dtype of activations and compute weights; fp64 is for tests"),
      choice("train.device", kMayChangeOnResume | kMayDifferInStudy, &t.device,
             "compute device; auto: cuda if a GPU and libhero_cuda.so are available"),
      flag("train.cuda_graph", kMayChangeOnResume, &t.cuda_graph,
           "record the passes of a micro-batch as a CUDA graph and replay it (one rank; not with "
           "options whose work differs between micro-batches or that read the device)"),
      flag("train.recompute", kFixedOnResume, &t.recompute,
           "recompute activations in the backward pass to save memory"),
      choice("train.trainable", kFixedOnResume, &t.trainable,
             "weights to train; routers: all other weights are frozen"),
      integer("train.threads", kMayChangeOnResume | kMayDifferBetweenRanks | kMayDifferInStudy, &t.threads, 0,
              "number of CPU threads; 0: all cores that the process may use"),
      integer("train.routing_every", kMayChangeOnResume, &t.routing_every, 1,
              "steps between snapshots of expert shares in routing.jsonl"),
      integer(
          "train.skip_nonfinite", kMayChangeOnResume, &t.skip_nonfinite, 0,
          "number of updates in a row to skip if the loss or gradient norm is not finite; the next one ends "
          "the run"),
      non_negative("train.spike_skip", kMayChangeOnResume, &t.spike_skip,
                   "skip updates whose loss or gradient norm exceeds the mean of the last 128 steps by this "
                   "many standard deviations; 0: off"),
      integer(
          "train.norms_every", kMayChangeOnResume, &t.norms_every, 0,
          "steps between norms of gradients, updates and weights per layer and component, and the largest "
          "attention and router logits, in metrics.jsonl; 0: none"),
      integer("train.log_every", kMayChangeOnResume, &t.log_every, 1,
              "steps between progress lines if stderr is not a terminal"),
      flag("train.document_mask", kFixedOnResume, &t.document_mask,
           "tokens do not attend to earlier documents in their sequence"),
      flag("train.document_positions", kFixedOnResume, &t.document_positions,
           "positions restart at 0 with each document"),
      choice("train.pack", kFixedOnResume, &t.pack,
             "packing of documents into sequences; concat: one after the other, split at the end of a "
             "sequence; best_fit: whole documents, padded, and only those longer than a sequence are split"),
      flag("train.loss_mask", kFixedOnResume, &t.loss_mask,
           "train only on the tokens that the data marks, such as those of the assistant; the loss is their "
           "mean over the global batch"),
      non_negative("train.mtp_loss", kFixedOnResume, &t.mtp_loss,
                   "weight of the mean loss of the multi-token prediction modules "
                   "(model.num_nextn_predict_layers)"),

      {.key = "data.phase",
       .attributes = kMayChangeOnResume,
       .value = &config.data.phases,
       .help =
           "phases of the run instead of --data, each with its own blend of data as with --data; a phase "
           "ends with the first step at or after its bound, the last one with the run; those of completed "
           "steps may not change"},

      choice("optim.kind", kFixedOnResume, &o.kind,
             "optimizer; muon: Muon for matrices of attention, experts and feed-forward layers, AdamW for "
             "embeddings, the output head, routers and vectors"),
      positive("optim.lr", kMayChangeOnResume, &o.lr, "peak learning rate"),
      non_negative("optim.min_lr", kMayChangeOnResume, &o.min_lr, "learning rate at the end of the decay"),
      integer("optim.warmup_steps", kMayChangeOnResume, &o.warmup_steps, 0,
              "number of linear warmup steps, included in train.steps; the default is at most train.steps"),
      fraction("optim.beta1", kMayChangeOnResume, &o.beta1, "AdamW beta1"),
      fraction("optim.beta2", kMayChangeOnResume, &o.beta2, "AdamW beta2"),
      positive("optim.eps", kMayChangeOnResume, &o.eps, "AdamW epsilon"),
      non_negative("optim.weight_decay", kMayChangeOnResume, &o.weight_decay,
                   "decoupled weight decay of matrices"),
      non_negative("optim.clip_norm", kMayChangeOnResume, &o.clip_norm,
                   "maximum gradient norm; 0: no clipping"),
      fraction("optim.muon_momentum", kMayChangeOnResume | kMuonOnly, &o.muon_momentum,
               "Nesterov momentum of Muon"),
      flag("optim.muon_router", kFixedOnResume | kMuonOnly, &o.muon_router,
           "Muon also for the matrices of routers; W_O and W_R are separate matrices"),
      non_negative("optim.router_lr", kMayChangeOnResume, &o.router_lr,
                   "factor of the learning rate of routers (W_O)"),
      non_negative("optim.history_lr", kMayChangeOnResume | kHistoryOnly, &o.history_lr,
                   "factor of the learning rate of the routers' history weights (W_R)"),
      at_least(-1, "optim.history_weight_decay", kMayChangeOnResume | kHistoryOnly, &o.history_weight_decay,
               "decoupled weight decay of the history weights (W_R); -1: same as optim.weight_decay"),
      choice("optim.schedule", kMayChangeOnResume, &o.schedule,
             "learning rate after the warmup; cosine, linear: decay to optim.min_lr; wsd: constant, then a "
             "decay to optim.min_lr in the last optim.decay_steps steps; constant: no decay"),
      integer("optim.decay_steps", kMayChangeOnResume, &o.decay_steps, 0,
              "number of steps of the decay; 0: cosine and linear decay from the end of the warmup to "
              "train.steps, wsd in the last tenth of train.steps"),
      choice("optim.decay_shape", kMayChangeOnResume, &o.decay_shape,
             "shape of the decay of optim.schedule = \"wsd\""),
      text("optim.offload_folder", kMayChangeOnResume | kMayDifferInStudy, &o.offload_folder,
           "folder for the fp32 weights and moments, in memory-mapped files, if they do not fit in memory; "
           "\"\": in memory"),

      integer("eval.every", kMayChangeOnResume, &e.every, 0,
              "steps between validations, which also follow the last step; 0: off"),
      integer("eval.batches", kMayChangeOnResume, &e.batches, 0,
              "global batches per validation data set; 0: all"),
      texts("eval.data", kMayChangeOnResume, &e.data,
            "validation data, PREFIX or NAME=PREFIX each; []: the -valid half next to each prefix of the "
            "training data"),

      integer("checkpoint.every", kMayChangeOnResume | kMayDifferInStudy, &c.every, 0,
              "steps between checkpoints; 0: only after the last step"),
      integer("checkpoint.keep", kMayChangeOnResume | kMayDifferInStudy, &c.keep, 0,
              "number of most recent checkpoints to keep; 0: all"),
      flag("checkpoint.asynchronous", kMayChangeOnResume | kMayDifferInStudy, &c.asynchronous,
           "write checkpoints in the background, from a copy in CPU memory"),
      flag("checkpoint.keep_best", kMayChangeOnResume | kMayDifferInStudy, &c.keep_best,
           "also keep the checkpoint with the lowest validation loss; checkpoint.every must be a multiple of "
           "eval.every"),

      integer("parallel.data", kMayChangeOnResume, &p.data, 0,
              "data parallel size, over which the optimizer state is sharded; "
              "0: number of ranks divided by parallel.pipeline"),
      integer("parallel.pipeline", kMayChangeOnResume, &p.pipeline, 1, "pipeline parallel size"),
      integer("parallel.expert", kMayChangeOnResume, &p.expert, 1,
              "expert parallel size, within the data ranks"),
      integer("parallel.chunks", kMayChangeOnResume | kPipelineOnly, &p.chunks, 1,
              "model chunks per pipeline rank (interleaved schedule)"),
      integers("parallel.chunk_sizes", kMayChangeOnResume | kPipelineOnly, &p.chunk_sizes, 1,
               "decoder layers per model chunk; []: router stages if their number matches, else equal sizes"),
      choice("parallel.schedule", kMayChangeOnResume | kPipelineOnly, &p.schedule, "pipeline schedule"),
      integer("parallel.history_top", kFixedOnResume | kPipelineOnly, &p.history_top, 0,
              "send only this many largest probabilities per layer across pipeline boundaries, and the rest "
              "as one mass; changes the model; 0: send all"),
      positive("parallel.timeout", kMayChangeOnResume, &p.timeout,
               "seconds without a heartbeat after which a rank is considered lost"),
  };
}

}  // namespace

std::vector<Field> fields(Config& config) {
  std::vector<Field> list = model_fields(config.model);
  for (const auto& section : {router_fields(config.router), training_fields(config)})
    list.insert(list.end(), section.begin(), section.end());
  return list;
}

}  // namespace hero
