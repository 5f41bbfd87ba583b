// Edge cases of the MoE layer: tokens without experts, experts without tokens, one token, jitter.
#include "model/moe.h"

#include <gtest/gtest.h>

#include "oracle/small_models.h"

namespace moe_test {

struct Layer {
  explicit Layer(const hero::Config& c)
      : config(c),
        layout(1, c.model.num_experts, c.router),
        parameters(hero::train_dtype(c), 11),
        moe(parameters, "model.layers.0.mlp", 1, config, layout, hero::whole_model(config)) {}

  hero::Moe::Output operator()(const at::Tensor& x_TD, const hero::ForwardContext& context = {},
                               const at::Tensor& residual_TD = {}) const {
    hero::RoutingHistory history(layout, x_TD.size(0), x_TD.scalar_type(), false);
    return moe(x_TD, history, context, residual_TD);
  }

  hero::Config config;
  hero::HistoryLayout layout;
  hero::Parameters parameters;
  hero::Moe moe;
};

hero::Config capacity_one(int64_t shared) {
  auto c = small::deepseek();
  c.model.n_shared_experts = shared;
  c.model.num_experts_per_tok = 2;
  c.router.capacity_factor = 1e-3;
  return c;
}

// Equal tokens select the same experts; with capacity 1 only the first token keeps them.
at::Tensor equal_tokens() { return small::normal({1, 24}, 3).expand({6, 24}).contiguous(); }

TEST(Moe, OutputIsZeroIfAllAssignmentsAreDropped) {
  const Layer layer(capacity_one(0));
  const auto out = layer(equal_tokens(), {.training = true});
  EXPECT_GT(out.y_TD[0].abs().max().item<double>(), 1e-6);
  EXPECT_TRUE(out.y_TD.slice(0, 1).eq(0).all().item<bool>());
  EXPECT_EQ(out.routing.assigned.sum().item<int64_t>(), 12);
  EXPECT_EQ(out.routing.counts.sum().item<int64_t>(), 2);
}

// In evaluation only router.eval_capacity_factor drops tokens.
TEST(Moe, CapacityFactorDoesNotApplyToEvaluation) {
  auto c = capacity_one(0);
  const auto x = equal_tokens();
  const auto evaluated = Layer(c)(x);
  EXPECT_EQ(evaluated.routing.counts.sum().item<int64_t>(), 12);
  c.router.capacity_factor = 0;
  EXPECT_TRUE(evaluated.y_TD.equal(Layer(c)(x, {.training = true}).y_TD));
  c.router.eval_capacity_factor = 1e-3;
  EXPECT_EQ(Layer(c)(x).routing.counts.sum().item<int64_t>(), 2);
  EXPECT_EQ(Layer(c)(x, {.training = true}).routing.counts.sum().item<int64_t>(), 12);
}

TEST(Moe, OutputIsTheSharedExpertsIfAllAssignmentsAreDropped) {
  const Layer layer(capacity_one(2));
  const auto x = equal_tokens();
  hero::Parameters same(at::kDouble, 11);
  const hero::FeedForward shared(same, "model.layers.0.mlp.shared_experts", 24, 20,
                                 layer.config.model.initializer_range);
  const auto y = layer(x, {.training = true}).y_TD, want = shared(x);
  EXPECT_TRUE(y.slice(0, 1).equal(want.slice(0, 1)));
  EXPECT_FALSE(y[0].equal(want[0]));
}

TEST(Moe, AddsTheResidual) {
  for (const int64_t shared : {0, 2}) {
    const Layer layer(capacity_one(shared));
    const auto x = equal_tokens(), residual = small::normal({6, 24}, 4).set_requires_grad(true);
    const hero::ForwardContext training{.training = true};
    const auto alone = layer(x, training).y_TD, y = layer(x, training, residual).y_TD;
    EXPECT_LT(small::relative_error(y, residual + alone), 1e-15);
    EXPECT_TRUE(y.slice(0, 1).equal(residual.slice(0, 1) + alone.slice(0, 1)));
    const auto g = small::normal({6, 24}, 5);
    y.backward(g);
    EXPECT_TRUE(residual.grad().equal(g));
  }
}

TEST(Moe, ExpertsWithoutTokensGetNoGradient) {
  for (const auto type : {hero::Dtype::kFp64, hero::Dtype::kBf16}) {
    auto c = small::fused(small::deepseek());
    c.train.dtype = type;
    Layer layer(c);
    const auto x = small::normal({1, 64}, 3).expand({64, 64}).contiguous().to(hero::train_dtype(c));
    const auto out = layer(x);
    EXPECT_EQ(out.routing.counts.eq(0).sum().item<int64_t>(), 28);
    EXPECT_EQ(out.routing.counts.eq(64).sum().item<int64_t>(), 4);
    out.y_TD.sum().backward();
    for (const auto& p : layer.parameters.all()) {
      if (p.values.dim() != 3) continue;
      const auto touched = p.leaf.grad().flatten(1).ne(0).any(1);
      EXPECT_TRUE(touched.equal(out.routing.counts.gt(0))) << p.name << " " << name_of(type);
    }
  }
}

TEST(Moe, TokensAreIndependent) {
  const Layer layer(small::deepseek());
  const auto x = small::normal({5, 24}, 4);
  const auto all = layer(x).y_TD;
  for (int64_t t = 0; t < 5; ++t) {
    EXPECT_LT(small::relative_error(layer(x.slice(0, t, t + 1)).y_TD[0], all[t]), 1e-13);
  }
}

TEST(Moe, JitterChangesTheRouterInputOnlyInTraining) {
  auto c = small::deepseek();
  c.router.jitter = 0.2;
  const Layer with_jitter(c), without_jitter(small::deepseek());
  const auto x = small::normal({6, 24}, 5);
  EXPECT_TRUE(with_jitter(x).y_TD.equal(without_jitter(x).y_TD));
  const hero::ForwardContext context{.training = true, .seed = 1, .step = 4, .first_token = 10};
  const auto moved = with_jitter(x, context).routing.logits;
  EXPECT_FALSE(moved.equal(without_jitter(x).routing.logits));
  EXPECT_TRUE(moved.equal(with_jitter(x, context).routing.logits));
  // Jitter depends on the global token index: the same token in another micro-batch gets the same factor.
  const hero::ForwardContext later{.training = true, .seed = 1, .step = 4, .first_token = 12};
  EXPECT_LT(small::relative_error(with_jitter(x.slice(0, 2), later).routing.logits, moved.slice(0, 2)),
            1e-14);
  const hero::ForwardContext next_step{.training = true, .seed = 1, .step = 5, .first_token = 10};
  EXPECT_FALSE(with_jitter(x, next_step).routing.logits.equal(moved));
}

TEST(Moe, JitterStaysWithinItsBounds) {
  auto c = small::deepseek();
  c.router.jitter = 0.2;
  // For the i-th unit vector x, the logits are column i of W times the token's jitter factor.
  const Layer with_jitter(c), without_jitter(small::deepseek());
  const auto x = at::eye(24, at::kDouble);
  const hero::ForwardContext context{.training = true, .seed = 1};
  const auto factor = with_jitter(x, context).routing.logits / without_jitter(x).routing.logits;
  EXPECT_GE(factor.min().item<double>(), 0.8 - 1e-12);
  EXPECT_LE(factor.max().item<double>(), 1.2 + 1e-12);
  EXPECT_GT(factor.std().item<double>(), 0.05);
}

}  // namespace moe_test
