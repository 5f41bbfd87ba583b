// Every sum of a step is read under its own name.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <set>

#include "oracle/small_models.h"
#include "train/step.h"

namespace hero {
namespace step_sums_test {

constexpr int64_t kLength = 12;

Config configured() {
  auto config = small::qwen();
  config.router.z_loss = 0.1;
  config.router.coupling_loss = 0.1;
  config.train.micro_batch = config.train.global_batch = 2;
  return config;
}

struct Training {
  Transformer model{configured()};
  Optimizer optimizer{model.parameters(), model.config().optim};
  BalanceState balance =
      BalanceState::uniform(model.layout().layers(), model.layout().experts(), at::Device(at::kCPU));
  TrainStep step{model, optimizer, balance};
};

TEST(StepSums, LossesOfTheMicroBatch) {
  Training training;
  const auto samples = small::tokens(2, kLength + 1, training.model.config().model.vocab_size, 1);
  const auto want = [&] {
    const at::NoGradGuard no_grad;
    const auto output = training.model.forward(samples.slice(1, 0, kLength).contiguous(), {.training = true});
    return compute_losses(training.model, output, samples.slice(1, 1).reshape({-1}), kLength,
                          training.balance);
  }();
  training.step.begin(/*busy=*/0.5);
  training.step.micro_batch(samples, {.training = true});
  const auto sums = training.step.read();
  EXPECT_NEAR(sums.loss, want.total.item<double>(), 1e-12);
  EXPECT_NEAR(sums.lm, want.lm.item<double>(), 1e-12);
  EXPECT_NEAR(sums.balance, want.balance.item<double>(), 1e-12);
  EXPECT_NEAR(sums.z, want.z.item<double>(), 1e-12);
  EXPECT_NEAR(sums.coupling, want.coupling.item<double>(), 1e-12);
  const std::set<double> values = {sums.loss, sums.lm, sums.balance, sums.z, sums.coupling};
  EXPECT_EQ(values.size(), 5u) << "equal losses would hide an exchange";
  EXPECT_EQ(sums.gradient_norm, 0);
  EXPECT_EQ(sums.stop_signal, 0);
  EXPECT_EQ(sums.traffic.activations, 0);
  EXPECT_EQ(sums.traffic.history, 0);
  EXPECT_EQ(sums.traffic.history_seconds, 0);
}

TEST(StepSums, SkippedUpdateChangesNothing) {
  Training training;
  const auto samples = small::tokens(2, kLength + 1, training.model.config().model.vocab_size, 1);
  for (const bool skips : {true, false}) {
    std::vector<at::Tensor> before{training.balance.shares_LE.clone()};
    std::vector<at::Tensor> now{training.balance.shares_LE};
    for (const auto& shard : training.optimizer.shards()) {
      for (const auto& tensor : {shard.values, shard.exp_avg, shard.exp_avg_sq}) {
        before.push_back(tensor.clone());
        now.push_back(tensor);
      }
    }
    training.step.begin();
    training.step.micro_batch(samples, {.training = true});
    double seen_loss = 0, seen_norm = 0;
    training.step.update(1, 1e-3, [&](double loss, double norm) {
      seen_loss = loss, seen_norm = norm;
      return skips;
    });
    EXPECT_EQ(seen_loss, training.step.read().loss);
    EXPECT_EQ(seen_norm, training.step.read().gradient_norm);
    EXPECT_GT(seen_norm, 0);
    bool unchanged = true;
    for (size_t i = 0; i < now.size(); ++i) unchanged &= at::equal(now[i], before[i]);
    EXPECT_EQ(unchanged, skips);
  }
}

// Means over tokens of the columns of Routing::stats.
TEST(StepSums, LayerStatistics) {
  Training training;
  const auto samples = small::tokens(2, kLength + 1, training.model.config().model.vocab_size, 1);
  const auto routings = [&] {
    const at::NoGradGuard no_grad;
    return training.model.forward(samples.slice(1, 0, kLength).contiguous(), {.training = true}).routings;
  }();
  training.step.begin();
  training.step.micro_batch(samples, {.training = true});
  const auto totals = training.step.read().layers.totals();
  ASSERT_EQ(totals.size(), routings.size());
  for (size_t i = 0; i < totals.size(); ++i) {
    const auto mean = routings[i].stats.mean(0);
    for (int64_t column = 0; column < ops::kRouteStats; ++column) {
      const double want = mean[column].item<double>();
      EXPECT_NEAR(totals[i].mean(column), want, 1e-12 * std::max(1.0, want))
          << ops::kRouteStatNames[column] << " of layer " << i + 1;
    }
    const auto& probs = routings[i].probs;
    EXPECT_NEAR(totals[i].mean(kEntropy), -(probs * probs.log()).sum(1).mean().item<double>(), 1e-12);
    EXPECT_EQ(totals[i].sees_history, i > 0);
  }
}

TEST(StepSums, SignalThatStopsTheRun) {
  Training training;
  for (const int signal : {0, SIGINT, SIGTERM}) {
    training.step.begin();
    training.step.request_stop(signal);
    EXPECT_EQ(training.step.read().stop_signal, signal);
  }
}

}  // namespace step_sums_test
}  // namespace hero
