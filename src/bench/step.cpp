#include "bench/step.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cmath>

#include "bench/observer.h"
#include "config/error.h"
#include "loss/loss.h"
#include "optim/adamw.h"
#include "train/process.h"
#include "train/run_log.h"

namespace hero {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// What `hero train` does in a step, less its logs.
class Training {
 public:
  explicit Training(const Config& config)
      : config_(config),
        model_(config),
        optimizer_(model_.parameters(), config.optim),
        balance_(BalanceState::uniform(model_.layout().layers(), model_.layout().experts())) {}

  struct Times {
    double step_ms = 0, forward_ms = 0;
  };

  Times step() {
    const auto& t = config_.train;
    const int64_t s = t.sequence, count = t.global_batch / t.micro_batch;
    const auto samples = at::randint(config_.model.vocab_size, {count, t.micro_batch, s + 1}, at::kLong);
    Times times;
    const auto begin = Clock::now();
    ++steps_;
    for (int64_t i = 0; i < count; ++i) {
      const Position position{true, static_cast<uint64_t>(t.seed), steps_, i * t.micro_batch * s};
      const auto forward = Clock::now();
      const auto output = model_.forward(samples[i].slice(1, 0, s).contiguous(), position, t.recompute);
      times.forward_ms += milliseconds_since(forward) / static_cast<double>(count);
      const auto targets = samples[i].slice(1, 1, s + 1).reshape({-1});
      const auto losses = compute_losses(model_, output, targets, s, balance_);
      if (const double total = losses.total.item<double>(); !std::isfinite(total))
        throw RunError("step " + std::to_string(steps_) + ": the loss is " + std::to_string(total));
      (losses.total / static_cast<double>(count)).backward();
    }
    const double norm = optimizer_.gradient_norm(), limit = config_.optim.clip_norm;
    optimizer_.step(steps_, learning_rate(config_.optim, steps_, config_.train.steps),
                    limit > 0 && norm > limit ? limit / norm : 1.0);
    times.step_ms = milliseconds_since(begin);
    return times;
  }

 private:
  Config config_;
  Transformer model_;
  AdamW optimizer_;
  BalanceState balance_;
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
    const auto times = training->step();
    if (i >= options.warmup) {
      costs.step_ms.push_back(times.step_ms);
      costs.forward_ms.push_back(times.forward_ms);
    }
    on_step();
  }
  costs.peak_memory_mib = peak_memory_mib();
  for (int64_t i = 0; i < observed_steps(options.steps); ++i) {
    const TensorLedger ledger;
    const RouterClock clock;
    training->step();
    if (clock.calls() > 0) costs.router_ms.push_back(clock.seconds() * 1e3);
    costs.tensor_peak_mib = std::max(costs.tensor_peak_mib, static_cast<double>(held + ledger.peak()) / kMiB);
    on_step();
  }
  return costs;
}

}  // namespace hero
