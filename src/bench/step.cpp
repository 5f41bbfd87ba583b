#include "bench/step.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cmath>

#include "bench/observer.h"
#include "config/error.h"
#include "optim/adamw.h"
#include "train/process.h"
#include "train/run_log.h"
#include "train/step.h"

namespace hero {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// What `hero train` does in a step, less its logs, on random tokens.
class Training {
 public:
  explicit Training(const Config& config)
      : config_(config),
        model_(config, at::kCPU),
        optimizer_(model_.parameters(), config.optim),
        balance_(BalanceState::uniform(model_.layout().layers(), model_.layout().experts(), at::kCPU)),
        step_(model_, optimizer_, balance_) {}

  double step_ms() {
    const auto& t = config_.train;
    const int64_t count = t.global_batch / t.micro_batch;
    const auto samples = random_samples(count);
    const auto begin = Clock::now();
    ++steps_;
    step_.begin();
    for (int64_t i = 0; i < count; ++i) step_.micro_batch(samples[i], position(i));
    step_.update(steps_, learning_rate(config_.optim, steps_, t.steps));
    if (const double loss = step_.read().loss; !std::isfinite(loss))
      throw RunError("step " + std::to_string(steps_) + ": the loss is " + std::to_string(loss));
    return milliseconds_since(begin);
  }

  // The forward pass of a micro-batch, as a step runs it.
  double forward_ms() const {
    const auto tokens = random_samples(1)[0].slice(1, 1).contiguous();
    const auto begin = Clock::now();
    const auto output = model_.forward(tokens, position(0), config_.train.recompute);
    return milliseconds_since(begin);
  }

 private:
  at::Tensor random_samples(int64_t count) const {
    const auto& t = config_.train;
    return at::randint(config_.model.vocab_size, {count, t.micro_batch, t.sequence + 1}, at::kLong);
  }
  Position position(int64_t micro_batch) const {
    const auto& t = config_.train;
    return {true, static_cast<uint64_t>(t.seed), steps_, micro_batch * t.micro_batch * t.sequence};
  }

  Config config_;
  Transformer model_;
  AdamW optimizer_;
  BalanceState balance_;
  TrainStep step_;
  int64_t steps_ = 0;
};

constexpr double kMiB = 1 << 20;

}  // namespace

int64_t observed_steps(int64_t steps) { return (steps + 1) / 2; }

StepCosts measure_steps(const Config& config, const StepOptions& options,
                        const std::function<void()>& on_step) {
  prepare_process(config);
  at::manual_seed(static_cast<uint64_t>(config.train.seed));
  std::optional<Training> training;
  int64_t held = 0;
  {
    const TensorLedger ledger;
    training.emplace(config);
    held = ledger.live();
  }
  StepCosts costs;
  for (int64_t i = 0; i < options.warmup + options.steps; ++i) {
    const double step_ms = training->step_ms(), forward_ms = training->forward_ms();
    if (i >= options.warmup) {
      costs.step_ms.push_back(step_ms);
      costs.forward_ms.push_back(forward_ms);
    }
    on_step();
  }
  costs.peak_memory_mib = peak_memory_mib(at::kCPU);
  for (int64_t i = 0; i < observed_steps(options.steps); ++i) {
    const TensorLedger ledger;
    const RouterClock clock;
    training->step_ms();
    if (clock.calls() > 0) costs.router_ms.push_back(clock.seconds() * 1e3);
    costs.tensor_peak_mib = std::max(costs.tensor_peak_mib, static_cast<double>(held + ledger.peak()) / kMiB);
    on_step();
  }
  return costs;
}

}  // namespace hero
