#include "train/validation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <csignal>
#include <map>

#include "io/stop_signal.h"
#include "ops/ops.h"
#include "train/evaluate.h"

namespace hero {

Validation::Validation(const Transformer& model, const std::deque<ValidationSet>& sets, const World* world)
    : model_(model), sets_(sets), world_(world) {
  if (world && world->mesh().pipeline > 1) pipeline_ = std::make_unique<Pipeline>(model, *world);
}

Validation::Extent Validation::extent(const ValidationSet& set) const {
  const int64_t micro = model_.config().train.micro_batch, data_ranks = world_ ? world_->mesh().data : 1;
  const int64_t micro_batches = (set.windows + micro - 1) / micro;
  return {.micro_batches = micro_batches, .per_rank = (micro_batches + data_ranks - 1) / data_ranks};
}

MicroBatch Validation::read(const ValidationSet& set, const Extent& extent, int64_t i) const {
  const auto& train = model_.config().train;
  const int64_t index = world_ ? i * world_->mesh().data + world_->mesh().data_rank() : i;
  if (index >= extent.micro_batches) {
    const auto samples = at::zeros({1, 2}, at::TensorOptions(model_.device()).dtype(at::kLong));
    return {.samples = samples, .position = {}, .labels = samples - 1};
  }
  const int64_t first = index * train.micro_batch, count = std::min(train.micro_batch, set.windows - first);
  auto batch = read_windows(set.reader, first, count, train.sequence, train, model_.device());
  if (train.loss_mask) {
    const auto mask = read_masks(set.reader, first, count, train.sequence, model_.device());
    batch.labels = at::where(mask, batch.labels, -1);
  }
  return batch;
}

void Validation::add_losses(const ValidationSet& set, const Extent& extent, int64_t begin, int64_t end,
                            const at::Tensor& sum) {
  const auto add = [&](const Transformer::Output& output, const MicroBatch& batch) {
    const auto targets_T = batch.labels.slice(1, 1).reshape({-1});
    sum.add_(ops::linear_cross_entropy(output.hidden_TD, model_.head(), targets_T));
  };
  if (!pipeline_) {
    for (int64_t i = begin; i < end; ++i) {
      const auto batch = read(set, extent, i);
      const int64_t length = batch.samples.size(1) - 1;
      add(model_.forward(batch.samples.slice(1, 0, length).contiguous(), batch.position), batch);
    }
    return;
  }
  const auto& mesh = world_->mesh();
  std::map<int64_t, MicroBatch> batches;
  const auto cached = [&](int64_t i) -> const MicroBatch& {
    auto found = batches.find(i);
    if (found == batches.end()) found = batches.emplace(i, read(set, extent, begin + i)).first;
    return found->second;
  };
  pipeline_->evaluate(
      forward_actions(mesh.pipeline_rank(), mesh.pipeline, model_.config().parallel.chunks, end - begin),
      cached, add);
}

bool Validation::stopped() {
  stop_signal_ = hero::stop_signal();
  if (!world_) return stop_signal_ != 0;
  const auto signals = at::zeros({2}, at::TensorOptions(model_.device()).dtype(at::kDouble));
  if (stop_signal_ == SIGINT) signals[0].fill_(1.0);
  if (stop_signal_ == SIGTERM) signals[1].fill_(1.0);
  world_->all().all_reduce(signals).wait();
  const auto received = signals.cpu();
  stop_signal_ = received[1].item<double>() > 0 ? SIGTERM : received[0].item<double>() > 0 ? SIGINT : 0;
  return stop_signal_ != 0;
}

std::optional<ValidationLosses> Validation::run(const std::function<void(double)>& on_progress) {
  const at::NoGradGuard no_grad;
  const auto& train = model_.config().train;
  // Several ranks agree on stopping after each global batch. No rank gets ahead of the others by more.
  const int64_t round = world_ ? train.global_batch / train.micro_batch / world_->mesh().data : 1;
  const auto sums =
      at::zeros({static_cast<int64_t>(sets_.size())}, at::TensorOptions(model_.device()).dtype(at::kDouble));
  int64_t all = 0, done = 0;
  for (const auto& set : sets_) all += extent(set).per_rank;
  for (size_t k = 0; k < sets_.size(); ++k) {
    const Extent extent = this->extent(sets_[k]);
    for (int64_t begin = 0; begin < extent.per_rank; begin += round) {
      const int64_t end = std::min(begin + round, extent.per_rank);
      add_losses(sets_[k], extent, begin, end, sums[static_cast<int64_t>(k)]);
      if (stopped()) return std::nullopt;
      done += end - begin;
      on_progress(static_cast<double>(done) / static_cast<double>(all));
    }
  }
  if (world_) world_->all().all_reduce(sums).wait();
  const auto totals = sums.cpu();
  ValidationLosses losses;
  double sum = 0, targets = 0;
  for (size_t k = 0; k < sets_.size(); ++k) {
    const auto count = static_cast<double>(sets_[k].targets);
    const double total = totals[static_cast<int64_t>(k)].item<double>();
    losses.sets.emplace_back(sets_[k].name, total / count);
    sum += total;
    targets += count;
  }
  losses.loss = sum / targets;
  return losses;
}

}  // namespace hero
