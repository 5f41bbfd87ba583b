#include "train/step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <csignal>

#include "ops/deferred.h"

namespace hero {
namespace {

// Elements of a step's sums: the losses first, the busy time of every rank and the layer statistics last.
enum StepSum : int64_t {
  kTotalLoss,
  kLmLoss,
  kMtpLoss,
  kBalanceLoss,
  kZLoss,
  kCouplingLoss,
  kEndOfLosses,
  kGradientSquare = kEndOfLosses,
  kInterrupted,  // ranks that received SIGINT
  kTerminated,   // and SIGTERM
  kActivations,  // traffic of the pipeline
  kHistory,
  kHistorySeconds,
  kBusy  // of rank 0, followed by the others
};

int64_t world_size(const World* world) { return world ? world->mesh().size() : 1; }
int64_t data_ranks(const World* world) { return world ? world->mesh().data : 1; }

}  // namespace

TrainStep::TrainStep(Transformer& model, Optimizer& optimizer, BalanceState& balance, const World* world)
    : model_(model),
      optimizer_(optimizer),
      balance_(balance),
      world_(world),
      sums_(at::zeros({kBusy + world_size(world) + LayerStats::size(model.layout())},
                      at::TensorOptions(model.device()).dtype(at::kDouble))),
      losses_(sums_.slice(0, 0, kEndOfLosses)),
      gradient_square_(sums_[kGradientSquare]),
      busy_(sums_.slice(0, kBusy, kBusy + world_size(world))),
      layers_(model.layout(), sums_.slice(0, kBusy + world_size(world))),
      use_graph_(model.config().train.cuda_graph && model.device().is_cuda() && world_size(world) == 1) {
  if (world && world->mesh().pipeline > 1) pipeline_ = std::make_unique<Pipeline>(model, *world);
}

void TrainStep::begin(double busy, bool norms, std::optional<int64_t> trained_tokens,
                      const std::vector<int64_t>& module_targets) {
  // A recorded graph accumulates into fixed addresses.
  optimizer_.zero_grad(/*keep=*/graph_ != nullptr);
  sums_.zero_();
  layers_.clear_tokens();
  norms_.reset();
  norm_stats_.reset();
  if (norms) norm_stats_.emplace(model_, optimizer_, world_);
  if (world_) busy_[world_->mesh().rank].fill_(busy);
  // Losses are weighted with the micro-batch's share of the global batch.
  const auto normalizer = [&](int64_t targets) {
    return static_cast<double>(std::max<int64_t>(targets, 1)) * batch_share();
  };
  normalizer_.reset();
  if (trained_tokens) normalizer_ = normalizer(*trained_tokens);
  module_normalizers_.clear();
  for (const int64_t targets : module_targets) module_normalizers_.push_back(normalizer(targets));
}

bool TrainStep::run(int64_t micro_batches, const std::function<MicroBatch(int64_t i)>& read,
                    const std::function<bool()>& stopped) {
  if (auto* buckets = optimizer_.buckets()) {
    buckets->prepare_for_backward(micro_batches, model_.config().train.recompute);
  }
  if (!pipeline_) {
    for (int64_t i = 0; i < micro_batches; ++i) {
      if (i > 0 && stopped()) return false;
      const auto batch = read(i);
      micro_batch(batch.samples, batch.position, batch.labels);
    }
    return true;
  }
  const auto& parallel = model_.config().parallel;
  const auto& mesh = world_->mesh();
  const auto schedule = make_schedule(parallel.schedule, mesh.pipeline, parallel.chunks, micro_batches);
  std::map<int64_t, MicroBatch> batches;
  const auto cached = [&](int64_t i) -> const MicroBatch& {
    auto found = batches.find(i);
    if (found == batches.end()) {
      auto batch = read(i);
      batch.position = prepared(batch.position);
      batch.samples = batch.samples.to(model_.device(), /*non_blocking=*/true);
      if (batch.labels.defined()) batch.labels = batch.labels.to(model_.device(), /*non_blocking=*/true);
      layers_.add_tokens(mesh.data * batch.samples.size(0) * (batch.samples.size(1) - 1));
      found = batches.emplace(i, std::move(batch)).first;
    }
    return found->second;
  };
  pipeline_->run(schedule[mesh.pipeline_rank()], cached,
                 [&](const ModelChunk& chunk, const Transformer::Output& output, const MicroBatch& batch,
                     const at::Tensor& mass_T) {
                   return accumulate_losses(chunk, output,
                                            batch.labels.defined() ? batch.labels : batch.samples,
                                            batch.position.starts_BS, mass_T);
                 },
                 {.on_deferred =
                      [&](const at::Tensor& leaf) {
                        if (auto* buckets = optimizer_.buckets()) buckets->expect_deferred_gradient(leaf);
                      },
                  .on_added =
                      [&](const at::Tensor& leaf) {
                        if (auto* buckets = optimizer_.buckets()) buckets->mark_deferred_ready(leaf);
                      }});
  return true;
}

void TrainStep::micro_batch(const at::Tensor& samples, const ForwardContext& position,
                            const at::Tensor& labels) {
  layers_.add_tokens(data_ranks(world_) * samples.size(0) * (samples.size(1) - 1));
  const auto moved = samples.to(model_.device(), /*non_blocking=*/true);
  if (!use_graph_) {
    return compute(moved, position,
                   labels.defined() ? labels.to(model_.device(), /*non_blocking=*/true) : moved);
  }
  if (!graph_) {
    // Warm-up runs the work and changes the sums, so only the first micro-batch of a step can be recorded.
    graph_samples_ = moved.clone();
    graph_ = record_graph([&, position] { compute(graph_samples_, position, graph_samples_); });
    optimizer_.zero_grad(/*keep=*/true);
    sums_.zero_();
  }
  graph_samples_.copy_(moved);
  graph_->replay();
}

void TrainStep::compute(const at::Tensor& samples, const ForwardContext& position, const at::Tensor& labels) {
  const auto tokens = samples.slice(1, 0, samples.size(1) - 1).contiguous();
  const auto context = prepared(position);
  // On a CPU the operators compute input and weight gradients in one pass; buckets need the hooks of the
  // leaves.
  const ops::AccumulateWeightGradients guard(model_.device().is_cuda() && !optimizer_.buckets());
  const auto output = model_.forward(tokens, context, model_.config().train.recompute);
  accumulate_losses(model_.shard().chunks.front(), output, labels, context.starts_BS).total.backward();
}

Pipeline::ChunkLoss TrainStep::accumulate_losses(const ModelChunk& chunk, const Transformer::Output& output,
                                                 const at::Tensor& labels, const at::Tensor& starts_BS,
                                                 const at::Tensor& mass_T) {
  const auto targets = labels.slice(1, 1).reshape({-1});
  ModuleTargets modules{.normalizers = module_normalizers_};
  const bool own_document = model_.config().train.document_mask;
  for (int64_t k = 1; k <= std::ssize(output.modules_TD); ++k)
    modules.targets_T.push_back(mtp_targets(labels, k, own_document ? starts_BS : at::Tensor()));
  const auto losses = compute_losses(model_, output, targets, labels.size(1) - 1, balance_,
                                     /*is_last_chunk=*/chunk.is_last, mass_T, normalizer_, modules);
  const double share = batch_share();
  const at::Tensor weighted = losses.total.defined() ? losses.total * share : at::Tensor();
  at::NoGradGuard no_grad;
  layers_.add(output.routings);
  if (norm_stats_) norm_stats_->add(output.routings);
  std::vector<at::Tensor> parts(kEndOfLosses);
  parts[kTotalLoss] =
      losses.total.defined() ? losses.total.detach().to(at::kDouble) : at::zeros_like(losses.lm);
  parts[kLmLoss] = losses.lm;
  parts[kMtpLoss] = losses.mtp;
  parts[kBalanceLoss] = losses.balance;
  parts[kZLoss] = losses.z;
  parts[kCouplingLoss] = losses.coupling;
  losses_ += at::stack(parts) * share;
  return {weighted, losses.mass_T};
}

double TrainStep::batch_share() const {
  const auto& c = model_.config().train;
  return static_cast<double>(c.micro_batch) / static_cast<double>(c.global_batch);
}

void TrainStep::request_stop(int signal) {
  if (signal == SIGINT) sums_[kInterrupted].fill_(1.0);
  if (signal == SIGTERM) sums_[kTerminated].fill_(1.0);
}

void TrainStep::update(int64_t number, double lr,
                       const std::function<bool(double loss, double norm)>& skips) {
  at::NoGradGuard no_grad;
  if (auto* buckets = optimizer_.buckets()) buckets->finish();
  gradient_square_.copy_(optimizer_.squared_gradient_norm());
  if (pipeline_) {
    const auto& t = pipeline_->traffic();
    sums_[kActivations].fill_(static_cast<double>(t.activations));
    sums_[kHistory].fill_(static_cast<double>(t.history));
    sums_[kHistorySeconds].fill_(t.history_seconds);
  }
  if (world_) world_->all().all_reduce(sums_).wait();
  if (skips && skips(sums_[kTotalLoss].item<double>(), std::sqrt(gradient_square_.item<double>()))) return;
  if (norm_stats_) norm_stats_->before_update();
  optimizer_.step(number, lr, gradient_square_.sqrt());
  if (norm_stats_) norms_ = norm_stats_->after_update();
  rebalance();
}

ForwardContext TrainStep::prepared(ForwardContext context) const {
  if (context.starts_BS.defined())
    context.starts_BS = context.starts_BS.to(model_.device(), /*non_blocking=*/true);
  if (norm_stats_) context.max_attention_logits = norm_stats_->max_attention_logits();
  return context;
}

void TrainStep::rebalance() {
  const auto& load = layers_.assigned_LE();
  balance_.shares_LE.copy_(load / load.sum(1, true));
  const double rate = model_.config().router.bias_update_rate;
  if (rate <= 0) return;
  for (const Moe* moe : model_.moe_blocks()) {
    const auto row = load[moe->router().layer() - 1];
    moe->bias().add_((row.mean() - row).sign().to(at::kFloat), rate);
  }
}

StepSums TrainStep::read() const {
  const auto host = sums_.cpu();
  const auto* values = host.const_data_ptr<double>();
  return {.loss = values[kTotalLoss],
          .lm = values[kLmLoss],
          .mtp = values[kMtpLoss],
          .balance = values[kBalanceLoss],
          .z = values[kZLoss],
          .coupling = values[kCouplingLoss],
          .gradient_norm = std::sqrt(values[kGradientSquare]),
          .stop_signal = values[kTerminated] > 0    ? SIGTERM
                         : values[kInterrupted] > 0 ? SIGINT
                                                    : 0,
          .traffic = {.activations = static_cast<int64_t>(values[kActivations]),
                      .history = static_cast<int64_t>(values[kHistory]),
                      .history_seconds = values[kHistorySeconds]},
          .busy = std::vector<double>(values + kBusy, values + kBusy + world_size(world_)),
          .layers = layers_.with_sums(host.slice(0, kBusy + world_size(world_))),
          .norms = norms_};
}

}  // namespace hero
