// The fp64 model against the reference implementation: logits, routing, all loss terms and the gradients of
// all weights.
#include <gtest/gtest.h>

#include <functional>

#include "loss/loss.h"
#include "oracle/oracle.h"
#include "oracle/small_models.h"

namespace model_oracle_test {

constexpr double kTolerance = 1e-10;

struct Case {
  std::string name;
  hero::Config base;
  std::function<void(hero::Config&)> change;
};

std::vector<Case> cases() {
  const auto none = [](hero::Config&) {};
  std::vector<Case> list;
  for (const auto& [family, base] :
       {std::pair("qwen", small::qwen()), std::pair("deepseek", small::deepseek())}) {
    const auto add = [&, f = std::string(family), b = base](const std::string& name,
                                                            std::function<void(hero::Config&)> change) {
      list.push_back({f + "_" + name, b, std::move(change)});
    };
    add("hero", none);
    add("baseline", [](auto& c) { c.router.kind = "baseline"; });
    add("two_stages", [](auto& c) { c.router.stages = 2; });
    add("stages_global",
        [](auto& c) { c.router.stages = 2, c.router.history = hero::HistoryScope::kGlobal; });
    add("window_1", [](auto& c) { c.router.window = 1; });
    add("window_2_of_stage",
        [](auto& c) { c.router.stages = 2, c.router.window = 2, c.model.num_hidden_layers = 7; });
    add("no_scale", [](auto& c) { c.router.scale = false; });
    add("large_eps", [](auto& c) { c.router.eps = 0.5; });
    add("not_detached", [](auto& c) { c.router.detach = false; });
    add("not_detached_stages_window", [](auto& c) {
      c.router.detach = false, c.router.stages = 2, c.router.window = 1, c.model.num_hidden_layers = 7;
    });
    add("not_detached_no_scale", [](auto& c) { c.router.detach = false, c.router.scale = false; });
    add("rmoe", [](auto& c) { c.router.kind = "rmoe", c.router.state_size = 5; });
    add("rmoe_stages", [](auto& c) { c.router.kind = "rmoe", c.router.stages = 2; });
    add("rmoe_not_detached", [](auto& c) {
      c.router.kind = "rmoe", c.router.detach = false, c.router.stages = 2, c.model.num_hidden_layers = 7;
    });
    add("router_fp32_key", [](auto& c) { c.router.dtype = hero::RouterDtype::kFp32; });
    add("tied", [](auto& c) { c.model.tie_word_embeddings = true; });
    add("unnormalized", [](auto& c) { c.model.norm_topk_prob = false; });
    add("weight_eps", [](auto& c) { c.model.norm_topk_eps = 0.3; });
    add("all_experts", [](auto& c) { c.model.num_experts_per_tok = c.model.num_experts; });
    add("one_expert", [](auto& c) { c.model.num_experts_per_tok = 1; });
    add("balance_sequence", [](auto& c) { c.router.balance = hero::BalanceScope::kSequence; });
    add("balance_global", [](auto& c) { c.router.balance = hero::BalanceScope::kGlobal; });
    add("balance_none", [](auto& c) { c.router.balance = hero::BalanceScope::kNone; });
    add("capacity_probs", [](auto& c) { c.router.capacity_factor = 0.8; });
    add("capacity_position",
        [](auto& c) { c.router.capacity_factor = 0.8, c.router.drop_policy = hero::DropPolicy::kPosition; });
    add("norm_eps", [](auto& c) { c.model.rms_norm_eps = 1e-2, c.model.rope_theta = 100; });
  }
  const auto deepseek = [&](const std::string& name, std::function<void(hero::Config&)> change) {
    list.push_back({"deepseek_" + name, small::deepseek(), std::move(change)});
  };
  deepseek("query_rank", [](auto& c) { c.model.q_lora_rank = 9; });
  deepseek("rope_halves", [](auto& c) { c.model.rope_interleave = false; });
  deepseek("wide_values", [](auto& c) { c.model.v_head_dim = 13; });
  deepseek("shared_experts", [](auto& c) { c.model.n_shared_experts = 2; });
  deepseek("no_dense", [](auto& c) { c.model.first_k_dense_replace = 0; });
  deepseek("sigmoid", [](auto& c) { c.model.scoring_func = hero::ScoringFunc::kSigmoid; });
  deepseek("groups", [](auto& c) { c.model.n_group = 4, c.model.topk_group = 2; });
  deepseek("scaled", [](auto& c) { c.model.routed_scaling_factor = 2.5; });
  deepseek("module", [](auto& c) { c.model.num_nextn_predict_layers = 1; });
  deepseek("modules_tied",
           [](auto& c) { c.model.num_nextn_predict_layers = 3, c.model.tie_word_embeddings = true; });
  deepseek("modules_baseline",
           [](auto& c) { c.model.num_nextn_predict_layers = 2, c.router.kind = "baseline"; });
  deepseek("modules_rmoe", [](auto& c) {
    c.model.num_nextn_predict_layers = 2, c.router.kind = "rmoe", c.router.state_size = 5;
    c.router.stages = 2;
  });
  deepseek("modules_stages_window", [](auto& c) {
    c.model.num_nextn_predict_layers = 2, c.model.num_hidden_layers = 7;
    c.router.stages = 2, c.router.window = 3;
  });
  deepseek("modules_global", [](auto& c) {
    c.model.num_nextn_predict_layers = 2, c.router.stages = 2;
    c.router.history = hero::HistoryScope::kGlobal;
  });
  deepseek("modules_not_detached",
           [](auto& c) { c.model.num_nextn_predict_layers = 2, c.router.detach = false; });
  deepseek("modules_capacity", [](auto& c) {
    c.model.num_nextn_predict_layers = 2, c.router.capacity_factor = 0.8;
    c.router.balance = hero::BalanceScope::kPooled;
  });
  deepseek("everything", [](auto& c) {
    c.model.q_lora_rank = 9, c.model.n_shared_experts = 1, c.model.scoring_func = hero::ScoringFunc::kSigmoid,
    c.model.n_group = 2;
    c.model.topk_group = 1, c.model.routed_scaling_factor = 1.7, c.model.first_k_dense_replace = 2,
    c.model.num_hidden_layers = 7;
    c.router.stages = 2, c.router.window = 2, c.router.balance = hero::BalanceScope::kSequence,
    c.router.capacity_factor = 0.9;
  });
  return list;
}

class ModelAgainstOracle : public testing::TestWithParam<Case> {};

TEST_P(ModelAgainstOracle, ValuesAndGradients) {
  auto config = GetParam().base;
  config.router.balance_loss = 0.3;
  config.router.z_loss = 0.02;
  config.router.coupling_loss = 0.4;
  GetParam().change(config);
  hero::Transformer model(config);
  small::perturb(model, 0.1, 100);
  const int64_t batch = 2, length = 9;
  const auto tokens = small::tokens(batch, length, config.model.vocab_size, 1);
  const auto targets = small::tokens(1, batch * length, config.model.vocab_size, 2).view({-1});
  auto balance = hero::BalanceState::uniform(model.layout().layers(), config.model.num_experts);
  balance.shares_LE = small::normal(balance.shares_LE.sizes(), 3).softmax(1);

  const auto out = model.forward(tokens, {.training = true});
  hero::ModuleTargets modules;
  for (int64_t k = 1; k <= config.model.num_nextn_predict_layers; ++k) {
    const auto labels = at::cat({tokens.slice(1, 0, 1), targets.view({batch, length})}, 1);
    modules.targets_T.push_back(hero::mtp_targets(labels, k, {}));
  }
  const auto loss = hero::compute_losses(model, out, targets, length, balance, /*is_last_chunk=*/true,
                                         /*mass_T=*/{}, /*normalizer=*/{}, modules);
  loss.total.backward();

  const auto weights = oracle::copy_weights(model.parameters());
  const auto expected = oracle::forward(config, weights, tokens);
  const auto expected_loss = oracle::losses(config, expected, targets, length, balance.shares_LE);
  expected_loss.total.backward();

  EXPECT_LT(small::relative_error(model.logits(out.hidden_TD, batch), expected.logits), kTolerance);
  ASSERT_EQ(out.modules_TD.size(), expected.modules.size());
  for (size_t k = 0; k < expected.modules.size(); ++k) {
    EXPECT_LT(small::relative_error(model.logits(out.modules_TD[k], batch), expected.modules[k]), kTolerance);
  }
  ASSERT_EQ(out.routings.size(), expected.layers.size());
  for (size_t i = 0; i < expected.layers.size(); ++i) {
    const auto& got = out.routings[i];
    const auto& want = expected.layers[i];
    EXPECT_EQ(got.layer, static_cast<int64_t>(i) + 1);
    EXPECT_LT(small::relative_error(got.logits, want.logits), kTolerance);
    EXPECT_LT(small::relative_error(got.probs, want.probs), kTolerance);
    EXPECT_TRUE(got.ids.equal(want.ids)) << "layer " << i + 1;
    EXPECT_LT(small::relative_error(got.weights, want.gates.gather(1, want.ids)), kTolerance);
    EXPECT_TRUE(got.assigned.to(at::kDouble).equal(want.chosen.sum(0)));
    EXPECT_TRUE(got.counts.to(at::kDouble).equal(want.gates.ne(0).sum(0).to(at::kDouble)));
    EXPECT_FALSE(got.weights.requires_grad());
    EXPECT_FALSE(got.stats.requires_grad());
  }
  EXPECT_NEAR(loss.lm.item<double>(), expected_loss.lm.item<double>(), kTolerance);
  EXPECT_NEAR(loss.mtp.item<double>(), expected_loss.mtp.item<double>(), kTolerance);
  EXPECT_NEAR(loss.balance.item<double>(), expected_loss.balance.item<double>(), kTolerance);
  EXPECT_NEAR(loss.z.item<double>(), expected_loss.z.item<double>(), kTolerance);
  EXPECT_NEAR(loss.coupling.item<double>(), expected_loss.coupling.item<double>(), kTolerance);
  EXPECT_NEAR(loss.total.item<double>(), expected_loss.total.item<double>(), kTolerance);

  size_t compared = 0;
  for (const auto& p : model.parameters().all()) {
    for (const auto& part : p.parts) {
      const auto& weight = weights.at(part.name);
      const auto want = weight.grad().defined() ? weight.grad() : at::zeros_like(weight);
      EXPECT_LT(small::relative_error(small::gradient(p, part), want), kTolerance) << part.name;
      ++compared;
    }
  }
  EXPECT_EQ(compared + model.parameters().buffers().size(), weights.size());
}

INSTANTIATE_TEST_SUITE_P(Table, ModelAgainstOracle, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace model_oracle_test
