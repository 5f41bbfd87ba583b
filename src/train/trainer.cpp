#include "train/trainer.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>

#include "config/data_phases.h"
#include "distributed/activity.h"
#include "io/error.h"
#include "io/stop_signal.h"
#include "model/counts.h"
#include "ops/gemm_throughput.h"
#include "optim/learning_rate.h"
#include "train/skip_updates.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

// Whether the loss is a mean over fewer targets than the positions of the global batch.
bool has_untrained_tokens(const TrainConfig& c) { return c.loss_mask || c.pack == Packing::kBestFit; }

Optimizer make_optimizer(Transformer& model, const World* world) {
  const auto& config = model.config().optim;
  if (!world) return Optimizer(model.parameters(), config);
  return Optimizer(model.parameters(), config, world->data(), world->replica());
}

TrainingState initial_state(const Run& run, Transformer& model, const Optimizer& optimizer) {
  if (!run.checkpoint.empty()) return load_training_state(run.checkpoint, model, optimizer.shards());
  TrainingState state;
  state.balance = BalanceState::uniform(model.layout().layers(), model.layout().experts(), run.device);
  return state;
}

}  // namespace

Trainer::Trainer(Run run, const fs::path& folder, const World* world, std::unique_ptr<Transformer> model)
    : run_(std::move(run)),
      folder_(folder),
      world_(world),
      mesh_(world ? world->mesh() : Mesh()),
      model_(std::move(model)),
      optimizer_(make_optimizer(*model_, world)),
      state_(initial_state(run_, *model_, optimizer_)),
      step_(*model_, optimizer_, state_.balance, world),
      output_(mesh_.rank == 0 ? std::make_unique<RunOutput>(run_, folder, world, state_.step) : nullptr),
      checkpoints_(run_, folder, world, *model_, optimizer_, state_, output_.get()),
      gemm_flops_per_second_(gemm_flops_per_second(train_dtype(run_.config), run_.device)),
      gemm_seconds_per_token_(training_flops_per_token(run_.config) / gemm_flops_per_second_ /
                              static_cast<double>(mesh_.size())) {
  if (run_.config.train.skip_nonfinite == 0) state_.skips.nonfinite_in_a_row = 0;
  if (run_.config.train.spike_skip == 0) state_.skips.losses = state_.skips.gradient_norms = {};
  if (run_.config.eval.every > 0) validation_ = std::make_unique<Validation>(*model_, run_.validation, world);
}

int Trainer::run() {
  const auto& c = run_.config;
  if (state_.validation.interrupted) repeat_validation();
  if (state_.step == c.train.steps && checkpoints_.is_saved() && stop_ == 0) {
    if (output_) {
      std::fprintf(stderr, "%s: all %ld steps are done, nothing to do\n", folder_.c_str(), c.train.steps);
    }
    return 0;
  }
  if (output_) output_->start(state_.step, gemm_flops_per_second_);
  while (state_.step < c.train.steps && stop_ == 0 && step()) {
    // In a row of skipped updates the weights do not change, and nothing verifies them.
    const bool updated = state_.skips.nonfinite_in_a_row == 0;
    if (c.checkpoint.every > 0 && state_.step % c.checkpoint.every == 0 && updated)
      checkpoints_.save(/*wait=*/!c.checkpoint.asynchronous);
  }
  if (output_) output_->finish();
  checkpoints_.finish();
  while (!checkpoints_.is_saved()) checkpoints_.save(/*wait=*/true);
  if (output_) checkpoints_.report_best();
  if (stop_ == 0) return 0;
  if (output_) {
    std::fprintf(stderr, "%s: stopped by signal %d after step %ld of %ld and saved; continue with --resume\n",
                 folder_.c_str(), stop_, state_.step, c.train.steps);
  }
  return 128 + stop_;
}

MicroBatch Trainer::read(int64_t step, int64_t i) {
  const auto& c = run_.config.train;
  const int64_t s = c.sequence, micro = c.micro_batch;
  // Micro-batches go to data ranks round-robin. Each needs its own pinned buffer, because the copy to a GPU
  // is asynchronous.
  const int64_t first = (i * mesh_.data + mesh_.data_rank()) * micro;
  const auto options = at::TensorOptions(at::kLong).pinned_memory(run_.device.is_cuda());
  const auto samples = at::empty({micro, s + 1}, options);
  MicroBatch batch{
      samples,
      {.training = true, .seed = static_cast<uint64_t>(c.seed), .step = step, .first_token = first * s}};
  SampleOut out{.tokens = samples.data_ptr<int64_t>()};
  if (has_untrained_tokens(c)) {
    batch.labels = at::empty({micro, s + 1}, options);
    out.trained = batch.labels.data_ptr<int64_t>();
  }
  const bool documents = c.document_mask || c.document_positions;
  const auto starts = documents ? at::empty({micro, s + 1}, at::kLong) : at::Tensor();
  if (documents) out.starts = starts.data_ptr<int64_t>();
  run_.stream->read(state_.samples + first, micro, out);
  if (batch.labels.defined()) batch.labels.copy_(at::where(batch.labels.ne(0), samples, -1));
  if (documents) batch.position.starts_BS = at::empty({micro, s}, options).copy_(starts.slice(1, 0, s));
  return batch;
}

bool Trainer::step() {
  const auto& c = run_.config;
  const auto begin = std::chrono::steady_clock::now();
  const double waited = seconds_waited();
  StepRecord record{.step = state_.step + 1};
  record.lr = learning_rate(c.optim, record.step, c.train.steps);
  set_current_step(record.step);
  record.data_phase = phase_of_step(c, record.step);
  if (output_) output_->announce_phase(record.step);
  const int64_t norms = c.train.norms_every;
  const int64_t modules = c.model.num_nextn_predict_layers;
  std::vector<int64_t> module_targets;
  if (has_untrained_tokens(c.train) || (modules > 0 && c.train.document_mask)) {
    const auto targets = run_.stream->trained_targets(state_.samples, c.train.global_batch, modules,
                                                      /*own_document=*/c.train.document_mask);
    if (has_untrained_tokens(c.train)) record.trained_tokens = targets.front();
    module_targets.assign(targets.begin() + 1, targets.end());
  }
  step_.begin(busy_seconds_, norms > 0 && record.step % norms == 0, record.trained_tokens, module_targets);
  // Several processes agree on stopping at the end of the step, with its sums.
  const auto stopped = [&] { return !world_ && stop_signal() != 0; };
  const int64_t micro_batches = c.train.global_batch / c.train.micro_batch / mesh_.data;
  if (!step_.run(micro_batches, [&](int64_t i) { return read(record.step, i); }, stopped)) {
    stop_ = stop_signal();
    return false;
  }
  step_.request_stop(stop_signal());
  bool skipped = false;
  std::function<bool(double, double)> skips;
  if (c.train.skip_nonfinite > 0 || c.train.spike_skip > 0) {
    skips = [&](double loss, double norm) {
      return skipped = skips_update(c.train, state_.skips, loss, norm);
    };
  }
  // Moments have no skipped updates, so AdamW's bias correction does not count them.
  step_.update(record.step - state_.skips.skipped, record.lr, skips);
  const auto sums = step_.read();
  stop_ = world_ ? sums.stop_signal : stop_signal();
  record.loss = sums.loss;
  record.lm = sums.lm;
  if (modules > 0) record.mtp = sums.mtp;
  record.balance = sums.balance;
  record.z = sums.z;
  record.coupling = sums.coupling;
  record.gradient_norm = sums.gradient_norm;
  record.skipped = state_.skips.skipped;
  const bool finite = std::isfinite(record.loss) && std::isfinite(record.gradient_norm);
  if (!std::isfinite(record.loss) && !skipped) fail("the loss is " + std::to_string(record.loss));
  if (!finite && !skipped) {
    const auto name = optimizer_.non_finite_gradient();
    fail("the gradient of " + (name.empty() ? "a parameter on another rank" : name) + " is not finite");
  }

  if (finite) checkpoints_.mark_verified(state_.step);
  state_.step = record.step;
  state_.samples += c.train.global_batch;
  record.tokens = state_.tokens += step_tokens();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  busy_seconds_ = seconds - (seconds_waited() - waited);
  record.milliseconds = seconds * 1e3;
  for (const double busy : sums.busy) record.busy_ms.push_back(busy * 1e3);
  record.traffic = sums.traffic;
  record.tokens_per_second = static_cast<double>(step_tokens()) / seconds;
  record.mfu = record.tokens_per_second * gemm_seconds_per_token_;
  record.peak_memory_mib = peak_memory_mib(run_.device);
  record.max_expert_share = sums.layers.max_share();
  const bool last = record.step == c.train.steps;
  if (validation_ && (last || record.step % c.eval.every == 0)) record.validation = validate();
  if (output_) output_->write(record, sums);
  return true;
}

std::optional<ValidationLosses> Trainer::validate() {
  std::optional<ValidationLosses> losses;
  if (stop_ == 0) {
    losses = validation_->run(output_ ? output_->validation_progress(state_.step) : [](double) {});
    stop_ = validation_->stop_signal();
  }
  state_.validation.interrupted = !losses;
  if (losses) checkpoints_.set_validation(state_.step, losses->loss);
  return losses;
}

void Trainer::repeat_validation() {
  state_.validation.interrupted = false;
  if (!validation_) return;
  const auto losses = validate();
  if (!losses) return;
  if (output_) output_->add_validation(state_.step, *losses);
  checkpoints_.save_again();
}

void Trainer::fail(std::string what) {
  if (const int64_t skipped = state_.skips.nonfinite_in_a_row; skipped > 0)
    what += " after " + std::to_string(skipped) + " skipped updates in a row";
  throw RunError(folder_.string() + ": step " + std::to_string(state_.step + 1) + ": " + what +
                 checkpoints_.advice_after_failure());
}

}  // namespace hero
