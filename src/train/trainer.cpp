#include "train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "config/error.h"
#include "data/step_progress.h"
#include "folder/load.h"
#include "model/counts.h"
#include "ops/cuda_library.h"
#include "train/process.h"
#include "train/run_folder.h"
#include "train/run_log.h"
#include "train/step.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t stop_signal = 0;

// The first SIGINT or SIGTERM asks for a save; the second ends the process at once.
void on_signal(int number) {
  stop_signal = number;
  std::signal(number, SIG_DFL);
}

class Trainer {
 public:
  Trainer(Run run, const fs::path& folder)
      : run_(std::move(run)),
        folder_(folder),
        model_(run_.config, run_.device),
        optimizer_(model_.parameters(), run_.config.optim),
        step_(model_, optimizer_, state_.balance),
        log_(folder),
        machine_share_per_token_(training_flops_per_token(run_.config) /
                                 gemm_rate(train_dtype(run_.config), run_.device)) {
    state_.balance = BalanceState::uniform(model_.layout().layers(), model_.layout().experts(), run_.device);
    if (!run_.init_from.empty()) load_weights(run_.init_from, model_, run_.new_history);
    if (!run_.checkpoint.empty()) state_ = load_training_state(run_.checkpoint, model_, optimizer_);
    log_.cut_to(state_.step);
    saved_ = run_.checkpoint.empty() ? -1 : state_.step;
  }

  int run() {
    const auto& c = run_.config;
    announce();
    StepProgress progress(
        "step", c.train.steps,
        {.start = state_.step, .rate_unit = "tok", .rate_per_item = static_cast<double>(step_tokens())});
    while (state_.step < c.train.steps && stop_signal == 0) {
      const double loss = step();
      char note[32];
      std::snprintf(note, sizeof note, "loss %.4f", loss);
      progress.update(state_.step, note);
      if (c.checkpoint.every > 0 && state_.step % c.checkpoint.every == 0) save();
    }
    progress.finish();
    save();
    if (stop_signal == 0) return 0;
    std::fprintf(stderr, "%s: stopped by signal %d after step %ld of %ld and saved; continue with --resume\n",
                 folder_.c_str(), static_cast<int>(stop_signal), state_.step, c.train.steps);
    return 128 + stop_signal;
  }

 private:
  int64_t step_tokens() const { return run_.config.train.global_batch * run_.config.train.sequence; }

  void announce() const {
    const auto& c = run_.config;
    std::fprintf(stderr, "%s: %s router, %s parameters, %s tokens a step, %s, %s\n", folder_.c_str(),
                 c.router.kind.c_str(), with_thousands(model_.parameters().count()).c_str(),
                 with_thousands(step_tokens()).c_str(),
                 run_.device.is_cpu() ? (std::to_string(at::get_num_threads()) + " threads").c_str()
                                      : run_.device.str().c_str(),
                 state_.step ? ("resuming after step " + std::to_string(state_.step)).c_str() : "starting");
  }

  /// One optimizer step over the global batch; returns its loss.
  double step() {
    const auto& c = run_.config;
    const auto begin = std::chrono::steady_clock::now();
    const int64_t s = c.train.sequence, micro = c.train.micro_batch, count = c.train.global_batch / micro;
    StepRecord record{.step = state_.step + 1};
    record.lr = learning_rate(c.optim, record.step, c.train.steps);
    step_.begin();
    for (int64_t i = 0; i < count; ++i) {
      // A GPU copies from pinned memory while this thread goes on, so every micro-batch has its own.
      const auto samples =
          at::empty({micro, s + 1}, at::TensorOptions(at::kLong).pinned_memory(run_.device.is_cuda()));
      run_.stream->read(state_.samples + i * micro, micro, samples.data_ptr<int64_t>());
      step_.micro_batch(samples, {true, static_cast<uint64_t>(c.train.seed), record.step, i * micro * s});
    }
    step_.update(record.step, record.lr);
    const auto sums = step_.read();
    record.loss = sums.loss;
    record.lm = sums.lm;
    record.balance = sums.balance;
    record.z = sums.z;
    record.coupling = sums.coupling;
    record.gradient_norm = sums.gradient_norm;
    if (!std::isfinite(record.loss)) fail("the loss is " + std::to_string(record.loss));
    if (!std::isfinite(record.gradient_norm))
      fail("the gradient of " + optimizer_.non_finite_gradient() + " is not finite");

    state_.step = record.step;
    state_.samples += c.train.global_batch;
    record.tokens = state_.tokens += step_tokens();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    record.milliseconds = seconds * 1e3;
    record.tokens_per_second = static_cast<double>(step_tokens()) / seconds;
    record.mfu = record.tokens_per_second * machine_share_per_token_;
    record.peak_memory_mib = peak_memory_mib(run_.device);
    const bool last = record.step == c.train.steps;
    log_.write(record, sums.layers,
               last || (c.train.routing_every > 0 && record.step % c.train.routing_every == 0));
    return record.loss;
  }

  void save() {
    if (saved_ == state_.step) return;
    save_checkpoint(folder_, state_.step, checkpoint_contents(model_, optimizer_, state_, run_.inputs),
                    static_cast<int>(run_.config.checkpoint.keep));
    saved_ = state_.step;
  }

  [[noreturn]] void fail(const std::string& what) const {
    const auto checkpoints = list_checkpoints(folder_);
    throw RunError(folder_.string() + ": step " + std::to_string(state_.step + 1) + ": " + what +
                   "; last good checkpoint: " + (checkpoints.empty() ? "none" : checkpoints.back().string()));
  }

  Run run_;
  fs::path folder_;
  Transformer model_;
  AdamW optimizer_;
  TrainingState state_;
  TrainStep step_;
  RunLog log_;
  double machine_share_per_token_;  // seconds that a token would take at the measured GEMM rate
  int64_t saved_ = -1;
};

}  // namespace

int train(const TrainOptions& options) {
  auto run = open_run(options);
  if (run.device.is_cuda()) use_deterministic_algorithms();
  prepare_process(run.config);
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  return Trainer(std::move(run), options.run).run();
}

}  // namespace hero
