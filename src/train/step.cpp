#include "train/step.h"

#include <ATen/ATen.h>

namespace hero {
namespace {

constexpr int64_t kLosses = 5;  // total, lm, balance, z, coupling; the norm follows

}  // namespace

TrainStep::TrainStep(Transformer& model, AdamW& optimizer, BalanceState& balance)
    : model_(model),
      optimizer_(optimizer),
      balance_(balance),
      sums_(at::zeros({kLosses + 1 + LayerStats::size(model.layout())},
                      at::TensorOptions(model.device()).dtype(at::kDouble))),
      losses_(sums_.slice(0, 0, kLosses)),
      norm_(sums_[kLosses]),
      layers_(model.layout(), sums_.slice(0, kLosses + 1)),
      use_graph_(model.config().train.cuda_graph && model.device().is_cuda()) {}

void TrainStep::begin() {
  // What a recording adds to must stay where it is.
  optimizer_.clear_gradients(/*keep=*/graph_ != nullptr);
  sums_.zero_();
  layers_.clear_tokens();
}

void TrainStep::micro_batch(const at::Tensor& samples, const Position& position) {
  layers_.count_tokens(samples.size(0) * (samples.size(1) - 1));
  const auto moved = samples.to(model_.device(), /*non_blocking=*/true);
  if (!use_graph_) return compute(moved, position);
  if (!graph_) {
    // Recording runs the work for real, on whatever has been summed up so far: only a first micro-batch can.
    recorded_samples_ = moved.clone();
    graph_ = record_graph([&, position] { compute(recorded_samples_, position); });
    optimizer_.clear_gradients(/*keep=*/true);
    sums_.zero_();
  }
  recorded_samples_.copy_(moved);
  graph_->replay();
}

void TrainStep::compute(const at::Tensor& samples, const Position& position) {
  const auto& c = model_.config().train;
  const int64_t length = samples.size(1) - 1;
  const auto output = model_.forward(samples.slice(1, 0, length).contiguous(), position, c.recompute);
  const auto targets = samples.slice(1, 1).reshape({-1});
  const auto losses = compute_losses(model_, output, targets, length, balance_);
  const double share = static_cast<double>(c.micro_batch) / static_cast<double>(c.global_batch);
  (losses.total * share).backward();
  at::NoGradGuard no_grad;
  layers_.add(output.routings);
  const auto total = losses.total.detach().to(at::kDouble);
  losses_ += at::stack({total, losses.lm, losses.balance, losses.z, losses.coupling}) * share;
}

void TrainStep::update(int64_t step, double lr) {
  at::NoGradGuard no_grad;
  norm_.copy_(optimizer_.gradient_norm());
  optimizer_.step(step, lr, norm_);
  rebalance();
}

void TrainStep::rebalance() {
  const auto& load = layers_.assigned_LE();
  balance_.shares_LE.copy_(load / load.sum(1, true));
  const double rate = model_.config().router.bias_update_rate;
  if (rate <= 0) return;
  for (const auto& layer : model_.layers()) {
    if (!layer.moe()) continue;
    const auto row = load[layer.moe()->router().layer() - 1];
    layer.moe()->bias().add_((row.mean() - row).sign().to(at::kFloat), rate);
  }
}

StepSums TrainStep::read() const {
  const auto host = sums_.cpu();
  const auto* values = host.const_data_ptr<double>();
  return {.loss = values[0],
          .lm = values[1],
          .balance = values[2],
          .z = values[3],
          .coupling = values[4],
          .gradient_norm = values[kLosses],
          .layers = layers_.with_sums(host.slice(0, kLosses + 1))};
}

}  // namespace hero
