// A training step on a GPU, compared with the same step on the CPU; skipped without a GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ops/cuda_library.h"
#include "oracle/small_models.h"
#include "train/step.h"

namespace hero {
namespace device_step_test {

// Runs before any test: LibTorch caches whether CUDA is available.
class CudaLibrary : public testing::Environment {
  void SetUp() override {
    if (load_cuda_library()) use_deterministic_algorithms();
  }
};
const auto* const cuda_library = testing::AddGlobalTestEnvironment(new CudaLibrary);

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> weights;
  at::Tensor shares;
};

Config configured() {
  auto config = small::fused(small::deepseek());
  config.model.scoring_func = ScoringFunc::kSigmoid;
  config.model.n_shared_experts = 1;
  config.router.bias_update_rate = 0.01;
  config.router.balance = BalanceScope::kGlobal;
  config.router.z_loss = 1e-3;
  config.train.dtype = Dtype::kFp32;
  config.train.micro_batch = 2;
  config.train.global_batch = 4;
  return config;
}

Outcome trained(const Config& config, at::Device device, int64_t steps) {
  Transformer model(config, device);
  Optimizer optimizer(model.parameters(), config.optim);
  auto balance = BalanceState::uniform(model.layout().layers(), model.layout().experts(), device);
  TrainStep step(model, optimizer, balance);
  Outcome outcome;
  for (int64_t n = 1; n <= steps; ++n) {
    step.begin();
    for (const uint64_t micro : {0, 1}) {
      auto samples = small::tokens(2, 65, config.model.vocab_size, 2 * static_cast<uint64_t>(n) + micro);
      if (device.is_cuda()) samples = samples.pin_memory();
      const auto position = at::arange(64).expand({2, 64});
      auto starts = (position.div(21, "floor") * 21).contiguous();
      if (device.is_cuda()) starts = starts.pin_memory();
      step.micro_batch(samples, {.training = true, .seed = 1, .step = n, .starts_BS = starts});
    }
    step.update(n, 1e-3);
    const auto sums = step.read();
    outcome.losses.push_back(sums.loss);
    outcome.norms.push_back(sums.gradient_norm);
  }
  for (const auto& p : model.parameters().all()) outcome.weights.push_back(p.values.cpu());
  outcome.shares = balance.shares_LE.cpu();
  return outcome;
}

void expect_same(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_TRUE(a.shares.equal(b.shares));
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_TRUE(a.weights[i].equal(b.weights[i])) << i;
}

class DeviceStep : public testing::Test {
 protected:
  void SetUp() override {
    if (!load_cuda_library()) GTEST_SKIP() << cuda_unavailable_reason();
  }
  const at::Device gpu_{at::kCUDA, 0};
};

TEST_F(DeviceStep, InitialWeightsMatchTheCpu) {
  const Transformer on_cpu(configured()), on_gpu(configured(), gpu_);
  for (size_t i = 0; i < on_cpu.parameters().all().size(); ++i) {
    const auto& p = on_gpu.parameters().all()[i];
    EXPECT_TRUE(p.values.is_cuda() && p.leaf.is_cuda()) << p.name;
    EXPECT_TRUE(p.values.cpu().equal(on_cpu.parameters().all()[i].values)) << p.name;
  }
}

// In fp32 the first step differs only by the order of sums. Later steps may choose different experts where
// scores nearly tie.
TEST_F(DeviceStep, MatchesTheCpu) {
  const auto cpu = trained(configured(), at::kCPU, 3), cuda = trained(configured(), gpu_, 3);
  EXPECT_NEAR(cuda.losses[0], cpu.losses[0], 1e-5 * cpu.losses[0]);
  EXPECT_NEAR(cuda.norms[0], cpu.norms[0], 1e-4 * cpu.norms[0]);
  for (size_t n = 1; n < cpu.losses.size(); ++n)
    EXPECT_NEAR(cuda.losses[n], cpu.losses[n], 1e-3 * cpu.losses[n]) << n;
}

TEST_F(DeviceStep, DocumentsMatchTheCpu) {
  for (auto config : {configured(), small::fused(small::qwen())}) {
    config.train = configured().train;
    config.train.document_mask = config.train.document_positions = true;
    const auto cpu = trained(config, at::kCPU, 1), cuda = trained(config, gpu_, 1);
    EXPECT_NEAR(cuda.losses[0], cpu.losses[0], 1e-5 * cpu.losses[0]);
    EXPECT_NEAR(cuda.norms[0], cpu.norms[0], 1e-4 * cpu.norms[0]);
  }
}

TEST_F(DeviceStep, IsDeterministic) {
  for (const auto type : {Dtype::kFp32, Dtype::kBf16}) {
    auto config = configured();
    config.train.dtype = type;
    expect_same(trained(config, gpu_, 3), trained(config, gpu_, 3));
  }
}

TEST_F(DeviceStep, CudaGraphGivesIdenticalResults) {
  for (const auto type : {Dtype::kFp32, Dtype::kBf16}) {
    auto config = configured();
    config.train.dtype = type;
    const auto without_graph = trained(config, gpu_, 4);
    config.train.cuda_graph = true;
    expect_same(trained(config, gpu_, 4), without_graph);
  }
}

TEST_F(DeviceStep, RecomputationWithJitterGivesIdenticalResults) {
  auto config = configured();
  config.router.jitter = 0.1;
  const auto without_recomputation = trained(config, gpu_, 2);
  config.train.recompute = true;
  expect_same(trained(config, gpu_, 2), without_recomputation);
}

TEST_F(DeviceStep, NonFiniteGradientChangesNoWeight) {
  const auto config = configured();
  Transformer model(config, gpu_);
  Optimizer optimizer(model.parameters(), config.optim);
  std::vector<at::Tensor> before;
  for (auto& p : model.parameters().all()) {
    before.push_back(p.values.clone());
    p.leaf.mutable_grad() = at::ones_like(p.values);
  }
  auto& broken = model.parameters().all()[3];
  broken.leaf.mutable_grad().view({-1})[0] = NAN;
  optimizer.step(1, 1e-3, optimizer.squared_gradient_norm().sqrt());
  EXPECT_EQ(optimizer.non_finite_gradient(), broken.name);
  for (size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(model.parameters().all()[i].values.equal(before[i])) << i;
}

}  // namespace device_step_test
}  // namespace hero
