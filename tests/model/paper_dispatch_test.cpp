// Top-k selection, normalized weights and weighted aggregation (method section), and Corollary 1: expert
// selection depends only on the logits and is the same for every router.
#include <gtest/gtest.h>

#include <functional>

#include "oracle/oracle.h"
#include "oracle/router_stack.h"

namespace paper_dispatch_test {

struct Layer {
  explicit Layer(const hero::Config& c)
      : config(c),
        layout(2, c.model.num_experts, c.router),
        parameters(at::kDouble, 11),
        first(parameters, "model.layers.0.mlp", 1, config, layout, hero::whole_model(c)),
        second(parameters, "model.layers.1.mlp", 2, config, layout, hero::whole_model(c)) {}

  hero::Config config;
  hero::HistoryLayout layout;
  hero::Parameters parameters;
  hero::Moe first, second;
};

at::Tensor weight_of(const Layer& layer, const std::string& name) {
  for (const auto& [known, values] : layer.parameters.state_dict()) {
    if (known == name) return values;
  }
  ADD_FAILURE() << "no weight " << name;
  return {};
}

TEST(PaperMethod, TopKNormalizedWeightsAndAggregation) {
  auto c = small::qwen();
  c.model.norm_topk_eps = 0.1;
  const Layer layer(c);
  const auto x = small::normal({9, 24}, 1);
  hero::RoutingHistory history(layer.layout, 9, at::kDouble, false);
  const auto out = layer.first(x, history, {});
  for (int64_t t = 0; t < 9; ++t) {
    const auto q = out.routing.probs[t];
    // A_t: no unselected expert has a larger probability than a selected one.
    const auto selected = q.gather(0, out.routing.ids[t]);
    const auto unselected = q.scatter(0, out.routing.ids[t], -1.0);
    EXPECT_EQ(std::get<0>(at::_unique(out.routing.ids[t])).size(0), 3);
    EXPECT_LT(unselected.max().item<double>(), selected.min().item<double>());
    auto y = at::zeros({24}, at::kDouble);
    for (int64_t k = 0; k < 3; ++k) {
      const auto e = out.routing.ids[t][k].item<int64_t>();
      const double w = q[e].item<double>() / (selected.sum().item<double>() + 0.1);
      EXPECT_NEAR(out.routing.weights[t][k].item<double>(), w, 1e-14);
      const std::string expert = "model.layers.0.mlp.experts." + std::to_string(e) + ".";
      const auto gate = at::mv(weight_of(layer, expert + "gate_proj.weight"), x[t]),
                 up = at::mv(weight_of(layer, expert + "up_proj.weight"), x[t]);
      y += w * at::mv(weight_of(layer, expert + "down_proj.weight"), gate * gate.sigmoid() * up);
    }
    EXPECT_LT(small::relative_error(out.y_TD[t], y), 1e-13) << "token " << t;
  }
}

// Corollary 1: the HERO layer's selection is R(Z_O + Z_R) with the baseline's R, for every policy.
TEST(PaperCorollary1, SelectionDependsOnlyOnLogits) {
  const std::vector<std::function<void(hero::Config&)>> policies = {
      [](auto&) {},
      [](auto& c) { c.model.norm_topk_prob = false; },
      [](auto& c) { c.model.scoring_func = hero::ScoringFunc::kSigmoid; },
      [](auto& c) { c.model.n_group = 4, c.model.topk_group = 2; },
      [](auto& c) { c.router.capacity_factor = 0.7; },
      [](auto& c) { c.router.capacity_factor = 0.7, c.router.drop_policy = hero::DropPolicy::kPosition; },
      [](auto& c) { c.model.routed_scaling_factor = 2.5; },
  };
  for (const auto& change : policies) {
    auto hero_config = small::deepseek();
    change(hero_config);
    auto baseline = hero_config;
    baseline.router.kind = "baseline";
    const Layer layer(hero_config);
    const auto a = small::normal({30, 24}, 1), b = small::normal({30, 24}, 2);
    hero::RoutingHistory history(layer.layout, 30, at::kDouble, false);
    layer.first(a, history, {});
    const auto out = layer.second(b, history, {.training = true});
    const auto& z = out.routing.logits;
    const auto selection = hero::sparse_route(z, z.softmax(1), layer.second.bias(), baseline.model,
                                              baseline.router, 2, baseline.router.capacity_factor);
    EXPECT_TRUE(selection.ids.equal(out.routing.ids));
    EXPECT_LT(small::relative_error(selection.weights, out.routing.weights), 1e-15);
    EXPECT_TRUE(hero::count_assignments(selection.kept, 8).equal(out.routing.counts));
    // The history changes the logits.
    const auto z_o = at::matmul(b, layer.second.router().weight().slice(1, 0, 24).t());
    EXPECT_GT(small::relative_error(z, z_o), 1e-2);
  }
}

// With equal logits, the layer selects the same experts and has the same output as the baseline.
TEST(PaperCorollary1, EqualLogitsGiveTheBaselinesOutput) {
  auto hero_config = small::deepseek();
  hero_config.router.init = hero::RouterInit::kZero;
  hero_config.model.n_shared_experts = 1;
  auto baseline = hero_config;
  baseline.router.kind = "baseline";
  const Layer with(hero_config), without(baseline);
  const auto a = small::normal({30, 24}, 1), b = small::normal({30, 24}, 2);
  hero::RoutingHistory history(with.layout, 30, at::kDouble, false),
      none(without.layout, 30, at::kDouble, false);
  with.first(a, history, {});
  const auto x = with.second(b, history, {}), y = without.second(b, none, {});
  EXPECT_TRUE(x.routing.ids.equal(y.routing.ids));
  EXPECT_TRUE(x.routing.counts.equal(y.routing.counts));
  EXPECT_LT(small::relative_error(x.y_TD, y.y_TD), 1e-14);
}

}  // namespace paper_dispatch_test
