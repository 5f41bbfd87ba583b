// A tiny model overfits one batch: model, loss, gradients and optimizer together, in two dtypes.
#include <gtest/gtest.h>

#include <cmath>

#include "loss/loss.h"
#include "optim/learning_rate.h"
#include "optim/optimizer.h"
#include "oracle/small_models.h"

namespace overfit_test {

double final_loss(hero::Config config) {
  config.model.initializer_range = 0.05;
  hero::OptimConfig optim;
  optim.lr = 4e-3;
  optim.min_lr = 0.0;  // with a constant learning rate the loss occasionally jumps back to 0.1
  optim.warmup_steps = 1;
  constexpr int64_t kSteps = 150;
  optim.weight_decay = 0.0;
  hero::Transformer model(config);
  hero::Optimizer adam(model.parameters(), optim);
  const auto all = small::tokens(4, 33, config.model.vocab_size, 17);
  const auto tokens = all.slice(1, 0, 32).contiguous(), targets = all.slice(1, 1).flatten();
  const auto balance = hero::BalanceState::uniform(model.layout().layers(), config.model.num_experts);
  double lm = 0;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const auto losses = hero::compute_losses(model, model.forward(tokens), targets, 32, balance);
    lm = losses.lm.item<double>();
    if (step == 1) {
      EXPECT_NEAR(lm, std::log(static_cast<double>(config.model.vocab_size)), 0.5);
    }
    losses.total.backward();
    EXPECT_EQ(adam.non_finite_gradient(), "");
    adam.step(step, hero::learning_rate(optim, step, kSteps), adam.squared_gradient_norm().sqrt());
    adam.zero_grad();
  }
  return lm;
}

TEST(Overfit, QwenInBf16) { EXPECT_LT(final_loss(small::fused(small::qwen())), 0.03); }

TEST(Overfit, DeepseekInBf16WithStagesSharedExpertsAndSigmoid) {
  auto config = small::fused(small::deepseek());
  config.model.q_lora_rank = 32;
  config.model.n_shared_experts = 1;
  config.model.scoring_func = hero::ScoringFunc::kSigmoid;
  config.router.stages = 2;
  EXPECT_LT(final_loss(config), 0.03);
}

TEST(Overfit, QwenInFp32) {
  auto config = small::fused(small::qwen());
  config.train.dtype = hero::Dtype::kFp32;
  EXPECT_LT(final_loss(config), 0.03);
}

}  // namespace overfit_test
