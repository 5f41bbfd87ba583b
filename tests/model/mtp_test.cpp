// Multi-token prediction modules: targets, routing history, recomputation, separation from the main model.
// model_oracle_test.cpp compares values and gradients with the reference implementation.
#include "model/mtp.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <set>

#include "config/mtp_layers.h"
#include "hf/weight_shapes.h"
#include "loss/loss.h"
#include "model/counts.h"
#include "oracle/small_models.h"

namespace mtp_test {

constexpr int64_t kBatch = 2, kLength = 12;

hero::Config configured(int64_t modules, hero::Config config = small::deepseek()) {
  config.model.num_nextn_predict_layers = modules;
  return config;
}

at::Tensor samples_of(const hero::Config& config, uint64_t seed = 1) {
  return small::tokens(kBatch, kLength + 1, config.model.vocab_size, seed);
}

at::Tensor inputs(const at::Tensor& samples) { return samples.slice(1, 0, kLength).contiguous(); }

hero::ModuleTargets targets_of(const at::Tensor& labels, int64_t modules) {
  hero::ModuleTargets out;
  for (int64_t k = 1; k <= modules; ++k) out.targets_T.push_back(hero::mtp_targets(labels, k, {}));
  return out;
}

TEST(MtpTargets, TokenAfterTheLastInput) {
  const auto labels = at::arange(10, 17).view({1, 7});
  EXPECT_TRUE(hero::mtp_targets(labels, 1, {}).equal(at::tensor({12, 13, 14, 15, 16, -1})));
  EXPECT_TRUE(hero::mtp_targets(labels, 3, {}).equal(at::tensor({14, 15, 16, -1, -1, -1})));
  auto masked = labels.clone();
  masked[0][4] = -1;
  EXPECT_TRUE(hero::mtp_targets(masked, 1, {}).equal(at::tensor({12, 13, -1, 15, 16, -1})));
}

// Documents of 2, 3 and 1 inputs. As in the main model, the last position of a document predicts the first
// token of the next one.
TEST(MtpTargets, LastInputInTheSameDocument) {
  const auto labels = at::arange(10, 17).view({1, 7});
  const auto starts = at::tensor({0, 0, 2, 2, 2, 5}, at::kLong).view({1, 6});
  EXPECT_TRUE(hero::mtp_targets(labels, 1, starts).equal(at::tensor({12, -1, 14, 15, -1, -1})));
  EXPECT_TRUE(hero::mtp_targets(labels, 2, starts).equal(at::tensor({-1, -1, 15, -1, -1, -1})));
}

TEST(MtpHistory, ModulesFollowInTheLastStage) {
  hero::RouterConfig router;
  router.kind = "hero";
  router.stages = 2;
  const hero::HistoryLayout layout(5, 8, router, 2);
  EXPECT_EQ(layout.stage_of(), (std::vector<int64_t>{0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(layout.visible(6), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(layout.visible(7), (std::vector<int64_t>{4, 5, 6}));
  EXPECT_DOUBLE_EQ(layout.depth_factor(7), std::sqrt(6.0 / 3.0));
  router.window = 1;
  EXPECT_EQ(hero::HistoryLayout(5, 8, router, 2).visible(6), (std::vector<int64_t>{5}));
  router.history = hero::HistoryScope::kGlobal, router.window = 0;
  EXPECT_EQ(hero::HistoryLayout(5, 8, router, 2).visible(6), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  router.kind = "rmoe";
  EXPECT_EQ(hero::HistoryLayout(5, 8, router, 2).visible(7), (std::vector<int64_t>{6}));
}

TEST(Mtp, MainModelIsTheSameWithModules) {
  const auto config = configured(2);
  const hero::Transformer model(config), main(hero::main_model(config));
  const at::NoGradGuard no_grad;
  const auto tokens = inputs(samples_of(config));
  const auto with = model.forward(tokens, {.training = true}), without = main.forward(tokens);
  EXPECT_TRUE(with.hidden_TD.equal(without.hidden_TD));
  ASSERT_EQ(with.routings.size(), without.routings.size() + 2);
  EXPECT_EQ(with.routings.back().layer, 6);
  for (size_t i = 0; i < without.routings.size(); ++i)
    EXPECT_TRUE(with.routings[i].logits.equal(without.routings[i].logits));
  // Outside training the modules do not run.
  const auto inference = model.forward(tokens);
  EXPECT_TRUE(inference.hidden_TD.equal(without.hidden_TD));
  EXPECT_TRUE(inference.modules_TD.empty());
  EXPECT_EQ(inference.routings.size(), without.routings.size());
}

// Module k at position i depends on the tokens up to i + k and on no other.
TEST(Mtp, ReadsTokensUpToItsLastInput) {
  const auto config = configured(3);
  hero::Transformer model(config);
  small::perturb(model, 0.1, 100);
  const at::NoGradGuard no_grad;
  const auto tokens = inputs(samples_of(config));
  auto changed = tokens.clone();
  constexpr int64_t kChanged = 7;
  changed.select(1, kChanged).add_(1).remainder_(config.model.vocab_size);
  const auto a = model.forward(tokens, {.training = true}), b = model.forward(changed, {.training = true});
  for (int64_t k = 1; k <= 3; ++k) {
    const auto difference = (a.modules_TD[k - 1] - b.modules_TD[k - 1]).abs().amax(1).view({kBatch, kLength});
    for (int64_t i = 0; i < kLength; ++i) {
      const auto largest = difference.select(1, i).min().item<double>();
      if (i + k < kChanged) {
        EXPECT_LT(difference.select(1, i).max().item<double>(), 1e-12)
            << "module " << k << ", position " << i;
      } else if (i + k == kChanged) {
        EXPECT_GT(largest, 1e-6) << "module " << k << ", position " << i;
      }
    }
  }
}

TEST(Mtp, LossIsTheMeanOfTheModules) {
  auto config = configured(2);
  config.train.mtp_loss = 0.7;
  config.router.balance = hero::BalanceScope::kNone;
  const hero::Transformer model(config);
  const at::NoGradGuard no_grad;
  const auto samples = samples_of(config);
  const auto out = model.forward(inputs(samples), {.training = true});
  const auto balance = hero::BalanceState::uniform(model.layout().layers(), model.layout().experts());
  const auto targets = samples.slice(1, 1).reshape({-1});
  const auto losses =
      hero::compute_losses(model, out, targets, kLength, balance, true, {}, {}, targets_of(samples, 2));
  double mean = 0;
  for (int64_t k = 1; k <= 2; ++k) {
    const auto log_probs =
        at::mm(out.modules_TD[k - 1], model.head().t()).log_softmax(1).view({kBatch, kLength, -1});
    double sum = 0;
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t i = 0; i + k < kLength; ++i)
        sum -= log_probs[b][i][samples[b][i + k + 1].item<int64_t>()].item<double>();
    }
    mean += sum / static_cast<double>(kBatch * (kLength - k)) / 2;
  }
  EXPECT_NEAR(losses.mtp.item<double>(), mean, 1e-12);
  EXPECT_NEAR(losses.total.item<double>(), losses.lm.item<double>() + 0.7 * mean, 1e-12);
}

TEST(Mtp, RecomputationIsBitwiseEqual) {
  for (const auto dtype : {hero::Dtype::kBf16, hero::Dtype::kFp32, hero::Dtype::kFp64}) {
    for (const char* kind : {"baseline", "hero", "rmoe"}) {
      auto config = configured(2, small::fused(small::deepseek()));
      config.train.dtype = dtype;
      config.router.kind = kind;
      config.router.z_loss = 0.1;
      hero::Transformer model(config);
      const auto samples = samples_of(config);
      const auto balance = hero::BalanceState::uniform(model.layout().layers(), model.layout().experts());
      const auto gradients = [&](bool recompute) {
        const auto out = model.forward(inputs(samples), {.training = true}, recompute);
        hero::compute_losses(model, out, samples.slice(1, 1).reshape({-1}), kLength, balance, true, {}, {},
                             targets_of(samples, 2))
            .total.backward();
        std::vector<at::Tensor> all;
        for (auto& p : model.parameters().all()) {
          all.push_back(p.leaf.grad().clone());
          p.leaf.mutable_grad() = at::Tensor();
        }
        return all;
      };
      const auto saved = gradients(false), recomputed = gradients(true);
      for (size_t i = 0; i < saved.size(); ++i) {
        const auto& p = model.parameters().all()[i];
        EXPECT_TRUE(p.uses > 1 ? small::relative_error(recomputed[i], saved[i]) < 1e-6
                               : recomputed[i].equal(saved[i]))
            << p.name;
        EXPECT_GT(saved[i].abs().max().item<double>(), 0) << p.name;
      }
    }
  }
}

TEST(Mtp, NamesAndCountsOfWeights) {
  for (const char* kind : {"baseline", "hero", "rmoe"}) {
    auto config = configured(2);
    config.router.kind = kind;
    config.model.n_shared_experts = 1;
    const hero::Transformer model(config);
    std::set<std::string> names, expected;
    double values = 0;
    for (const auto& [name, tensor] : model.parameters().state_dict()) {
      names.insert(name + c10::str(tensor.sizes()));
      values += model.parameters().buffers().contains(name) ? 0.0 : static_cast<double>(tensor.numel());
    }
    hero::for_each_weight(config, [&](const std::string& name, const std::vector<int64_t>& shape) {
      expected.insert(name + c10::str(at::IntArrayRef(shape)));
    });
    EXPECT_EQ(names, expected);
    EXPECT_TRUE(names.contains("model.layers.6.eh_proj.weight[24, 48]"));
    double counted = 0, main = 0;
    for (const auto& item : hero::model_costs(config)) counted += item.parameters;
    for (const auto& item : hero::model_costs(hero::main_model(config))) main += item.parameters;
    EXPECT_EQ(counted, values);
    EXPECT_GT(counted, main);
  }
}

TEST(Mtp, MoeBlocksAreNumberedThroughTheModel) {
  const hero::Transformer model(configured(2));
  int64_t l = 0;
  for (const hero::Moe* moe : model.moe_blocks()) EXPECT_EQ(moe->router().layer(), ++l);
  EXPECT_EQ(l, model.layout().layers());
  EXPECT_EQ(l, 6);
}

}  // namespace mtp_test
