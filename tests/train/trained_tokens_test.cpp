// Cross-entropy over the trained tokens of the global batch, regardless of its micro-batches.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "oracle/small_models.h"
#include "train/step.h"

namespace hero {
namespace trained_tokens_test {

constexpr int64_t kLength = 12, kBatch = 4;

Config configured(int64_t micro_batch, int64_t modules = 0) {
  auto config = modules > 0 ? small::deepseek() : small::qwen();
  config.model.num_nextn_predict_layers = modules;
  config.router.balance = BalanceScope::kNone;
  config.router.z_loss = 0.1;
  config.train.micro_batch = micro_batch;
  config.train.global_batch = kBatch;
  return config;
}

struct Training {
  explicit Training(const Config& config) : model(config) {}
  Transformer model;
  Optimizer optimizer{model.parameters(), model.config().optim};
  BalanceState balance =
      BalanceState::uniform(model.layout().layers(), model.layout().experts(), at::Device(at::kCPU));
  TrainStep step{model, optimizer, balance};
};

struct Result {
  StepSums sums;
  std::vector<at::Tensor> gradients;
};

Result run_step(const Config& config, const at::Tensor& samples, const at::Tensor& labels) {
  Training training(config);
  std::vector<int64_t> module_targets;
  for (int64_t k = 1; k <= config.model.num_nextn_predict_layers; ++k)
    module_targets.push_back(labels.slice(1, k + 1).ge(0).sum().item<int64_t>());
  training.step.begin(/*busy=*/0, /*norms=*/false, labels.slice(1, 1).ge(0).sum().item<int64_t>(),
                      module_targets);
  const int64_t micro = config.train.micro_batch;
  training.step.run(kBatch / micro, [&](int64_t i) {
    return MicroBatch{samples.slice(0, i * micro, (i + 1) * micro),
                      {.training = true},
                      labels.slice(0, i * micro, (i + 1) * micro)};
  });
  training.step.update(1, 1e-3);
  Result result{training.step.read(), {}};
  for (const auto& p : training.model.parameters().all()) result.gradients.push_back(p.leaf.grad().clone());
  return result;
}

at::Tensor some_samples() { return small::tokens(kBatch, kLength + 1, configured(1).model.vocab_size, 1); }

// 12, 3, 0 and 1 trained targets: the mean of the sequences' means is another number.
at::Tensor some_labels(const at::Tensor& samples) {
  auto labels = samples.clone();
  labels[1].slice(0, 4).fill_(-1);
  labels[2].fill_(-1);
  labels[3].slice(0, 0, kLength).fill_(-1);
  return labels;
}

TEST(TrainedTokens, MeanOverTheGlobalBatch) {
  const auto samples = some_samples(), labels = some_labels(samples);
  const auto whole = run_step(configured(kBatch), samples, labels);
  // A plain computation from the logits.
  const Transformer model(configured(kBatch));
  const at::NoGradGuard no_grad;
  const auto output = model.forward(samples.slice(1, 0, kLength).contiguous(), {.training = true});
  const auto log_probs =
      at::mm(output.hidden_TD, model.head().t()).log_softmax(1).view({kBatch, kLength, -1});
  double sum = 0, mean_of_means = 0;
  const int64_t counts[] = {12, 3, 0, 1};
  for (int64_t b = 0; b < kBatch; ++b) {
    double part = 0;
    for (int64_t t = 0; t < kLength; ++t) {
      const auto target = labels[b][t + 1].item<int64_t>();
      if (target >= 0) part -= log_probs[b][t][target].item<double>();
    }
    sum += part;
    if (counts[b] > 0) mean_of_means += part / static_cast<double>(counts[b]) / 3;
  }
  EXPECT_NEAR(whole.sums.lm, sum / 16, 1e-12);
  EXPECT_GT(std::abs(mean_of_means - sum / 16), 1e-3) << "the test does not tell the two means apart";
  EXPECT_NEAR(whole.sums.loss - whole.sums.lm, 0.1 * 4 * whole.sums.z, 1e-12);
}

class MicroBatches : public testing::TestWithParam<int64_t> {};

// The parameter: multi-token prediction modules, whose targets are fewer.
TEST_P(MicroBatches, SameLossAndGradients) {
  const auto samples = some_samples(), labels = some_labels(samples);
  const auto whole = run_step(configured(kBatch, GetParam()), samples, labels);
  EXPECT_EQ(whole.sums.mtp > 0, GetParam() > 0);
  for (const int64_t micro : {1, 2}) {
    for (const bool recompute : {false, true}) {
      auto config = configured(micro, GetParam());
      config.train.recompute = recompute;
      const auto split = run_step(config, samples, labels);
      EXPECT_NEAR(split.sums.mtp, whole.sums.mtp, 1e-12) << micro;
      EXPECT_NEAR(split.sums.loss, whole.sums.loss, 1e-12) << micro;
      EXPECT_NEAR(split.sums.lm, whole.sums.lm, 1e-12) << micro;
      EXPECT_NEAR(split.sums.gradient_norm, whole.sums.gradient_norm, 1e-12) << micro;
      for (size_t i = 0; i < whole.gradients.size(); ++i)
        EXPECT_TRUE(at::allclose(split.gradients[i], whole.gradients[i], 1e-9, 1e-14)) << micro << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modules, MicroBatches, testing::Values(0, 2));

TEST(TrainedTokens, AllOfThemIsTheUnmaskedLoss) {
  const auto samples = some_samples();
  const auto masked = run_step(configured(2), samples, samples);
  Training plain(configured(2));
  plain.step.begin();
  for (const int64_t i : {0, 2}) plain.step.micro_batch(samples.slice(0, i, i + 2), {.training = true});
  plain.step.update(1, 1e-3);
  EXPECT_NEAR(masked.sums.loss, plain.step.read().loss, 1e-12);
  EXPECT_NEAR(masked.sums.gradient_norm, plain.step.read().gradient_norm, 1e-12);
}

// The cross-entropy is 0 and has no gradient; the auxiliary losses remain.
TEST(TrainedTokens, NoneInTheGlobalBatch) {
  const auto samples = some_samples();
  const auto none = run_step(configured(2), samples, at::full_like(samples, -1));
  EXPECT_EQ(none.sums.lm, 0);
  EXPECT_NEAR(none.sums.loss, 0.1 * 4 * none.sums.z, 1e-12);
  EXPECT_GT(none.sums.gradient_norm, 0);
  EXPECT_TRUE(std::isfinite(none.sums.gradient_norm));
  auto config = configured(2);
  config.router.z_loss = 0;
  EXPECT_EQ(run_step(config, samples, at::full_like(samples, -1)).sums.gradient_norm, 0);
}

}  // namespace trained_tokens_test
}  // namespace hero
