// Measurements of `hero bench`: number of samples, calls seen by RouterTimer. Tests only the sign of times.
// Also runs on a GPU if available.
#include "perf/step_benchmark.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "io/error.h"
#include "ops/cuda_library.h"
#include "oracle/small_models.h"
#include "perf/observer.h"
#include "train/run_log.h"
#include "train/step.h"

namespace hero {
namespace step_benchmark_test {

// Before any test: LibTorch caches its first check for CUDA.
class CudaLibrary : public testing::Environment {
  void SetUp() override { load_cuda_library(); }
};
const auto* const cuda_library = testing::AddGlobalTestEnvironment(new CudaLibrary);

class MeasuredSteps : public testing::TestWithParam<DeviceChoice> {
 protected:
  void SetUp() override {
    if (GetParam() == DeviceChoice::kCuda && !load_cuda_library()) GTEST_SKIP() << cuda_unavailable_reason();
    config_ = small::fused(small::deepseek());
    config_.router.kind = "hero";
    config_.train.device = GetParam();
    config_.train.sequence = 64;
    config_.train.micro_batch = 2;
    config_.train.global_batch = 4;
    config_.optim.warmup_steps = 1;
  }

  StepCosts measured(const StepOptions& options) {
    calls_ = 0;
    return measure_steps(config_, options, [this] { ++calls_; });
  }

  Config config_;
  int64_t calls_ = 0;
};

// PyTorch reports frees with the sizes that an earlier tracker's blocks had at the same addresses.
TEST(TensorMemoryTracker, CountsItsOwnBlocksOnly) {
  constexpr int64_t kBlocks = 64, kBytes = 1 << 16;
  const auto allocated = [] {
    std::vector<at::Tensor> blocks;
    for (int64_t i = 0; i < kBlocks; ++i) blocks.push_back(at::empty({kBytes}, at::kByte));
    return blocks;
  };
  std::vector<at::Tensor> seen;
  {
    const TensorMemoryTracker tracker;
    seen = allocated();
    EXPECT_EQ(tracker.live(), kBlocks * kBytes);
  }
  seen.clear();
  auto unseen = allocated();  // mostly at the addresses of `seen`
  const TensorMemoryTracker tracker;
  unseen.clear();
  EXPECT_EQ(tracker.live(), 0);
  allocated();
  EXPECT_EQ(tracker.live(), 0);
  EXPECT_EQ(tracker.peak(), kBlocks * kBytes);
}

bool positive(const std::vector<double>& values) {
  return std::ranges::all_of(values, [](double value) { return value > 0; });
}

TEST_P(MeasuredSteps, TimedAndProfiledStepsHaveSamplesWarmupHasNone) {
  const auto costs = measured({.steps = 3, .warmup = 2});
  EXPECT_EQ(costs.step_ms.size(), 3u);
  EXPECT_EQ(costs.forward_ms.size(), 3u);
  EXPECT_EQ(costs.router_ms.size(), 2u);
  EXPECT_EQ(calls_, 2 + 3 + 2);
  EXPECT_TRUE(positive(costs.step_ms) && positive(costs.forward_ms) && positive(costs.router_ms));
  EXPECT_GT(costs.tensor_peak_mib, 0);
  EXPECT_GT(costs.gemm_flops, 0);
}

TEST_P(MeasuredSteps, ForwardPassesHoldNoGradientsOrMoments) {
  const auto passes = measured({.steps = 2, .warmup = 0, .forward = true});
  EXPECT_TRUE(passes.step_ms.empty());
  EXPECT_EQ(passes.forward_ms.size(), 2u);
  EXPECT_EQ(passes.router_ms.size(), 1u);
  EXPECT_EQ(calls_, 3);
  EXPECT_TRUE(positive(passes.forward_ms) && positive(passes.router_ms));
  const auto steps = measured({.steps = 1, .warmup = 0});
  // Gradients and two moments in fp32; the libraries' workspaces on a GPU are in both.
  const Transformer model(config_);
  double parameters = 0;
  for (const auto& p : model.parameters().all()) parameters += static_cast<double>(p.values.numel());
  EXPECT_GT(steps.tensor_peak_mib - passes.tensor_peak_mib, 12 * parameters / (1 << 20));
}

TEST_P(MeasuredSteps, RecordedForwardPassesAreTimed) {
  config_.train.cuda_graph = true;  // without effect on a CPU
  const auto passes = measured({.steps = 2, .warmup = 1, .forward = true});
  EXPECT_EQ(passes.forward_ms.size(), 2u);
  EXPECT_TRUE(positive(passes.forward_ms));
}

TEST_P(MeasuredSteps, NonFiniteLossThrows) {
  config_.optim.lr = 1e38;
  config_.optim.warmup_steps = 0;
  EXPECT_THROW(measured({.steps = 6, .warmup = 0}), RunError);
}

TEST_P(MeasuredSteps, RouterTimerCountsAllRouterCalls) {
  const auto device = choose_device(GetParam(), "device");
  const Transformer model(config_, device);
  const auto tokens = small::tokens(2, 64, config_.model.vocab_size, 1).to(device);
  const int64_t layers = model.layout().layers();
  const RouterTimer timer(device);
  const auto output = model.forward(tokens);
  EXPECT_EQ(timer.calls(), layers);
  const double forward = timer.seconds();
  EXPECT_GT(forward, 0);
  output.hidden_TD.to(at::kFloat).square().sum().backward();
  // Input and weight gradients are separate operators.
  EXPECT_EQ(timer.calls(), 3 * layers);
  EXPECT_GT(timer.seconds(), forward);
}

INSTANTIATE_TEST_SUITE_P(Devices, MeasuredSteps, testing::Values(DeviceChoice::kCpu, DeviceChoice::kCuda),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace step_benchmark_test
}  // namespace hero
