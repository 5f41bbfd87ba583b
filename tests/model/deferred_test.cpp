// A model with deferred weight gradients: bitwise equal to a normal backward pass.
#include "ops/deferred.h"

#include <gtest/gtest.h>

#include <set>

#include "loss/loss.h"
#include "oracle/small_models.h"

namespace deferred_test {

struct Case {
  std::string name;
  hero::Config config;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (auto config : {small::fused(small::qwen()), small::fused(small::deepseek())}) {
    config.router.z_loss = 1e-2;
    config.router.balance_loss = 1e-1;
    for (const auto type : {hero::Dtype::kBf16, hero::Dtype::kFp64}) {
      config.train.dtype = type;
      const auto add = [&](const std::string& what, hero::Config c) {
        list.push_back({name_of(c.model.model_type) + "_" + name_of(type) + "_" + what, c});
        c.train.recompute = true;
        if (c.router.detach) list.push_back({list.back().name + "_recomputed", c});
      };
      add("hero", config);
      auto differentiable = config;
      differentiable.router.detach = false;
      add("differentiable_history", differentiable);
      auto routers = config;
      routers.train.trainable = hero::Trainable::kRouters;
      add("routers", routers);
    }
  }
  return list;
}

class Deferred : public testing::TestWithParam<Case> {};

// GEMM operators defer weight gradients. Embedding, output projection and routers with a differentiable
// history do not.
bool is_deferred(const hero::Parameter& p, const hero::Config& config) {
  return p.leaf.requires_grad() && p.leaf.dim() > 1 && p.name != "model.embed_tokens.weight" &&
         p.name != "lm_head.weight" && (config.router.detach || !p.name.ends_with(".mlp.gate.weight"));
}

// Forward passes of two micro-batches, then their backward passes, each with its own queue or none.
void step(const hero::Transformer& model, hero::ops::WeightGradientQueue* first,
          hero::ops::WeightGradientQueue* second) {
  const auto& config = model.config();
  const auto balance = hero::BalanceState::uniform(model.layout().layers(), config.model.num_experts);
  std::vector<at::Tensor> losses;
  for (auto* queue : {first, second}) {
    const hero::ops::DeferWeightGradients guard(queue);
    const uint64_t seed = losses.size();
    const auto tokens = small::tokens(2, 24, config.model.vocab_size, seed),
               targets = small::tokens(1, 48, config.model.vocab_size, seed + 10).view({-1});
    const auto out = model.forward(tokens, {}, config.train.recompute);
    losses.push_back(hero::compute_losses(model, out, targets, tokens.size(1), balance).total);
  }
  for (const auto& loss : losses) loss.backward();
}

TEST_P(Deferred, BitEqual) {
  hero::Transformer plain(GetParam().config), deferred(GetParam().config);
  step(plain, nullptr, nullptr);
  hero::ops::WeightGradientQueue first, second;
  step(deferred, &first, &second);
  const auto &want = plain.parameters().all(), &got = deferred.parameters().all();
  std::set<const void*> outstanding;
  for (const auto& p : got) {
    const bool is_later = is_deferred(p, plain.config());
    EXPECT_EQ(p.leaf.grad().defined(), p.leaf.requires_grad() && !is_later) << p.name;
    if (is_later) outstanding.insert(p.leaf.unsafeGetTensorImpl());
  }
  first.run();
  second.run(
      [&](const at::Tensor& weight) { EXPECT_EQ(outstanding.erase(weight.unsafeGetTensorImpl()), 1u); });
  EXPECT_TRUE(outstanding.empty());
  EXPECT_TRUE(first.empty() && second.empty());
  for (size_t i = 0; i < want.size(); ++i) {
    if (!want[i].leaf.requires_grad()) continue;
    EXPECT_EQ(got[i].leaf.grad().scalar_type(), got[i].values.scalar_type()) << got[i].name;
    EXPECT_TRUE(got[i].leaf.grad().equal(want[i].leaf.grad())) << got[i].name;
    EXPECT_GT(got[i].leaf.grad().abs().max().item<double>(), 0.0) << got[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Deferred, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace deferred_test
