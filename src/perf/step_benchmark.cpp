#include "perf/step_benchmark.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <cmath>

#include "io/error.h"
#include "ops/cuda_library.h"
#include "ops/device_graph.h"
#include "ops/gemm_throughput.h"
#include "optim/learning_rate.h"
#include "optim/optimizer.h"
#include "perf/observer.h"
#include "train/process.h"
#include "train/run_log.h"
#include "train/step.h"

namespace hero {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

at::Tensor random_samples(const Config& config, int64_t count, at::Device device) {
  const auto& t = config.train;
  const auto options = at::TensorOptions(at::kLong).pinned_memory(device.is_cuda());
  return at::randint(config.model.vocab_size, {count, t.micro_batch, t.sequence + 1}, options);
}

at::Tensor random_tokens(const Transformer& model) {
  return random_samples(model.config(), 1, model.device())[0].slice(1, 1).contiguous().to(model.device());
}

// Milliseconds of a micro-batch's forward pass, with gradients if enabled.
double forward_ms(const Transformer& model, const ForwardContext& position) {
  const auto& config = model.config();
  const auto device = model.device();
  const auto tokens = random_tokens(model);
  synchronize(device);
  const auto begin = Clock::now();
  const auto output = model.forward(tokens, position, config.train.recompute);
  synchronize(device);
  return milliseconds_since(begin);
}

// A step of `hero train` without logging, on random tokens.
class TrainingWorkload {
 public:
  TrainingWorkload(const Config& config, at::Device device)
      : config_(config),
        model_(config, device),
        optimizer_(model_.parameters(), config.optim),
        balance_(BalanceState::uniform(model_.layout().layers(), model_.layout().experts(), device)),
        step_(model_, optimizer_, balance_) {}

  void measure(StepCosts& costs) {
    const double step = step_ms();
    costs.step_ms.push_back(step);
    costs.forward_ms.push_back(forward_ms(model_, position(0)));
  }

  double step_ms() {
    const auto& t = config_.train;
    const int64_t count = t.global_batch / t.micro_batch;
    const auto samples = random_samples(config_, count, model_.device());
    const auto begin = Clock::now();
    ++steps_;
    step_.begin();
    for (int64_t i = 0; i < count; ++i) step_.micro_batch(samples[i], position(i));
    step_.update(steps_, learning_rate(config_.optim, steps_, t.steps));
    if (const double loss = step_.read().loss; !std::isfinite(loss))
      throw RunError("step " + std::to_string(steps_) + ": the loss is " + std::to_string(loss));
    return milliseconds_since(begin);
  }

 private:
  ForwardContext position(int64_t micro_batch) const {
    const auto& t = config_.train;
    return {.training = true,
            .seed = static_cast<uint64_t>(t.seed),
            .step = steps_,
            .first_token = micro_batch * t.micro_batch * t.sequence};
  }

  Config config_;
  Transformer model_;
  Optimizer optimizer_;
  BalanceState balance_;
  TrainStep step_;
  int64_t steps_ = 0;
};

// Forward passes only: weights in train.dtype, nothing saved for a backward pass. With train.cuda_graph on a
// GPU, replays of a recorded pass.
class ForwardWorkload {
 public:
  ForwardWorkload(const Config& config, at::Device device)
      : model_(config, device), use_graph_(config.train.cuda_graph && device.is_cuda()) {}

  void measure(StepCosts& costs) { costs.forward_ms.push_back(step_ms()); }

  double step_ms() {
    const at::NoGradGuard no_grad;
    return use_graph_ ? replay_ms() : forward_ms(model_, {.training = true});
  }

 private:
  double replay_ms() {
    if (!graph_) {
      tokens_ = random_tokens(model_);
      graph_ = record_graph([&] { model_.forward(tokens_, {.training = true}); });
    }
    tokens_.copy_(random_tokens(model_));
    synchronize(model_.device());
    const auto begin = Clock::now();
    graph_->replay();
    synchronize(model_.device());
    return milliseconds_since(begin);
  }

  Transformer model_;
  bool use_graph_;
  at::Tensor tokens_;
  std::unique_ptr<DeviceGraph> graph_;
};

constexpr double kMiB = 1 << 20;

template <typename Workload>
StepCosts measure(const Config& config, at::Device device, const StepOptions& options,
                  const std::function<void()>& on_step) {
  reset_peak_memory(device);
  std::optional<Workload> workload;
  int64_t initial_bytes = 0;
  {
    const TensorMemoryTracker tracker;
    workload.emplace(config, device);
    initial_bytes = tracker.live();
  }
  StepCosts costs, unused;
  for (int64_t i = 0; i < options.warmup + options.steps; ++i) {
    workload->measure(i < options.warmup ? unused : costs);
    on_step();
  }
  costs.peak_memory_mib = peak_memory_mib(device);
  for (int64_t i = 0; i < profiled_steps(options.steps); ++i) {
    const TensorMemoryTracker tracker;
    const RouterTimer timer(device);
    workload->step_ms();
    if (timer.calls() > 0) costs.router_ms.push_back(timer.seconds() * 1e3);
    costs.tensor_peak_mib =
        std::max(costs.tensor_peak_mib, static_cast<double>(initial_bytes + tracker.peak()) / kMiB);
    on_step();
  }
  if (!device.is_cpu()) costs.tensor_peak_mib = costs.peak_memory_mib;  // already counts tensors only
  costs.gemm_flops = gemm_flops_per_second(train_dtype(config), device);
  return costs;
}

}  // namespace

int64_t profiled_steps(int64_t steps) { return (steps + 1) / 2; }

StepCosts measure_steps(const Config& config, const StepOptions& options,
                        const std::function<void()>& on_step) {
  const auto device = choose_device(config.train.device, "train.device");
  if (device.is_cuda()) use_deterministic_algorithms();
  prepare_process(config);
  at::manual_seed(static_cast<uint64_t>(config.train.seed));
  return options.forward ? measure<ForwardWorkload>(config, device, options, on_step)
                         : measure<TrainingWorkload>(config, device, options, on_step);
}

}  // namespace hero
