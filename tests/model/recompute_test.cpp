// Recomputation is bitwise equal: loss, routing, counts and the gradients of all weights that one layer
// reads, in every dtype. The sizes allow the fused bf16 kernels.
#include <gtest/gtest.h>

#include "loss/loss.h"
#include "oracle/small_models.h"

namespace recompute_test {

struct Case {
  std::string name;
  hero::Config config;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (auto config : {small::fused(small::qwen()), small::fused(small::deepseek())}) {
    config.model.num_hidden_layers = 6;
    config.router.z_loss = 1e-2;
    config.router.coupling_loss = 1e-1;
    config.router.balance_loss = 1e-1;
    for (const auto type : {hero::Dtype::kBf16, hero::Dtype::kFp32, hero::Dtype::kFp64}) {
      config.train.dtype = type;
      const auto add = [&](const std::string& what, hero::Config c) {
        list.push_back({name_of(c.model.model_type) + "_" + name_of(type) + "_" + what, std::move(c)});
      };
      add("hero", config);
      auto stages = config;
      stages.router.stages = 2, stages.router.window = 1, stages.router.jitter = 0.1;
      add("stages_jitter", stages);
      auto recurrent = config;
      recurrent.router.kind = "rmoe", recurrent.router.stages = 2;
      add("rmoe", recurrent);
      auto tied = config;
      tied.model.tie_word_embeddings = true, tied.router.kind = "baseline";
      add("tied_baseline", tied);
      if (config.train.dtype == hero::Dtype::kBf16) {
        auto wide = config;
        wide.router.dtype = hero::RouterDtype::kFp32, wide.router.capacity_factor = 0.7;
        add("wide_router_capacity", wide);
      }
    }
  }
  return list;
}

class Recompute : public testing::TestWithParam<Case> {};

struct Step {
  at::Tensor hidden, total;
  std::vector<hero::Routing> routings;
  std::vector<at::Tensor> gradients;
};

Step step(hero::Transformer& model, const at::Tensor& tokens, const at::Tensor& targets, bool recompute) {
  const hero::ForwardContext context{.training = true, .seed = 3, .step = 5, .first_token = 640};
  // As in a pipeline, the second micro-batch's forward pass precedes the first one's backward pass.
  const auto a = model.forward(tokens, context, recompute);
  const auto b = model.forward(tokens.flip({1}), context, recompute);
  const auto balance = hero::BalanceState::uniform(model.layout().layers(), model.config().model.num_experts);
  const auto loss_a = hero::compute_losses(model, a, targets, tokens.size(1), balance);
  const auto loss_b = hero::compute_losses(model, b, targets, tokens.size(1), balance);
  loss_a.total.backward();
  loss_b.total.backward();
  Step result{a.hidden_TD.detach(), loss_a.total.detach(), a.routings, {}};
  for (auto& p : model.parameters().all()) {
    EXPECT_TRUE(p.leaf.grad().defined()) << p.name;
    EXPECT_EQ(p.leaf.grad().scalar_type(), p.values.scalar_type()) << p.name;
    result.gradients.push_back(p.leaf.grad().clone());
    p.leaf.mutable_grad() = at::Tensor();
  }
  return result;
}

TEST_P(Recompute, BitwiseEqual) {
  hero::Transformer model(GetParam().config);
  const auto tokens = small::tokens(2, 48, model.config().model.vocab_size, 1);
  const auto targets = small::tokens(1, 96, model.config().model.vocab_size, 2).view({-1});
  const auto saved = step(model, tokens, targets, false), recomputed = step(model, tokens, targets, true);
  EXPECT_TRUE(saved.hidden.equal(recomputed.hidden));
  EXPECT_TRUE(saved.total.equal(recomputed.total));
  ASSERT_EQ(saved.routings.size(), recomputed.routings.size());
  for (size_t i = 0; i < saved.routings.size(); ++i) {
    const auto &a = saved.routings[i], &b = recomputed.routings[i];
    EXPECT_EQ(a.layer, b.layer);
    EXPECT_TRUE(a.logits.equal(b.logits));
    EXPECT_TRUE(a.probs.equal(b.probs));
    EXPECT_TRUE(a.stats.equal(b.stats));
    EXPECT_TRUE(a.ids.equal(b.ids));
    EXPECT_TRUE(a.weights.equal(b.weights));
    EXPECT_TRUE(a.assigned.equal(b.assigned));
    EXPECT_TRUE(a.counts.equal(b.counts));
  }
  for (size_t i = 0; i < saved.gradients.size(); ++i) {
    const auto& p = model.parameters().all()[i];
    const auto &a = saved.gradients[i], &b = recomputed.gradients[i];
    // Layers that share a weight add their gradients in another order: without recomputation, the sum of one
    // micro-batch is added to that of the preceding ones.
    EXPECT_TRUE(p.uses > 1 ? small::relative_error(b, a) < 1e-6 : a.equal(b)) << p.name;
    EXPECT_GT(a.abs().max().item<double>(), 0.0) << p.name;
  }
}

TEST_P(Recompute, RepeatedStepIsBitwiseEqual) {
  hero::Transformer model(GetParam().config);
  const auto tokens = small::tokens(2, 48, model.config().model.vocab_size, 1);
  const auto targets = small::tokens(1, 96, model.config().model.vocab_size, 2).view({-1});
  const auto first = step(model, tokens, targets, false), second = step(model, tokens, targets, false);
  for (size_t i = 0; i < first.gradients.size(); ++i) {
    EXPECT_TRUE(first.gradients[i].equal(second.gradients[i])) << model.parameters().all()[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Recompute, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace recompute_test
