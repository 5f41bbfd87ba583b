// Effect of the history on expert selection, against the oracle's router inputs and probabilities.
#include "analysis/branches.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "analysis/perturbed_models.h"
#include "oracle/sparse.h"

namespace branches_test {

using analyze::kVariants;

constexpr int64_t kBatch = 2, kLength = 40;

// Layer l of an example, with all logit branches computed from the router's input.
struct Direct {
  at::Tensor z_o, z_r;           // [T, E]
  std::vector<int64_t> seen;     // S(l)
  std::vector<at::Tensor> z_rp;  // of each layer in S(l)
  std::vector<at::Tensor> centered;
};

struct Example {
  explicit Example(const hero::Config& config) : model(config) {
    small::perturb(model, 0.1, 9);
    weights = oracle::copy_weights(model.parameters());
    const at::NoGradGuard no_grad;
    tokens = small::tokens(kBatch, kLength, config.model.vocab_size, 3);
    expected = oracle::forward(config, weights, tokens);
    routings = model.forward(tokens).routings;
  }

  Direct direct(int64_t l) const {
    const at::NoGradGuard no_grad;
    const auto& c = model.config();
    const int64_t d = c.model.hidden_size, e = c.model.num_experts;
    const auto layers = static_cast<int64_t>(expected.layers.size());
    const auto w = weights.at(analyze::router_name(c, l));
    const auto& x = expected.layers[l - 1].x;
    Direct out{.z_o = at::mm(x, w.slice(1, 0, d).t()),
               .seen = oracle::visible(l, c.router, oracle::stages(layers, c.router.stages))};
    if (out.seen.empty()) return out;
    std::vector<at::Tensor> history;
    for (const int64_t p : out.seen) history.push_back(expected.layers[p - 1].probs);
    auto rho = at::ones({x.size(0), 1}, at::kDouble);
    if (c.router.scale) {
      const double depth = std::sqrt(static_cast<double>(l - 1) / static_cast<double>(out.seen.size()));
      rho = oracle::rms(x) / (oracle::rms(at::cat(history, 1)) + c.router.eps) * depth;
    }
    out.z_r = at::zeros_like(out.z_o);
    for (size_t m = 0; m < history.size(); ++m) {
      const int64_t first = d + static_cast<int64_t>(m) * e;
      const auto block = w.slice(1, first, first + e);
      out.z_rp.push_back(rho * at::mm(history[m], block.t()));
      const auto centered = block - block.mean(0, true) - block.mean(1, true) + block.mean();
      out.centered.push_back(rho * at::mm(history[m], centered.t()));
      out.z_r += out.z_rp.back();
    }
    return out;
  }

  // The experts of every token that the oracle selects for these logits.
  std::vector<std::set<int64_t>> chosen(int64_t l, const at::Tensor& logits) const {
    const auto& c = model.config();
    auto without_capacity = c;
    without_capacity.router.capacity_factor = 0;
    const auto bias = weights.find("model.layers." + std::to_string(analyze::decoder_layer(c, l)) +
                                   ".mlp.gate.e_score_correction_bias");
    oracle::LayerRouting routing{.logits = logits};
    oracle::select_experts(without_capacity, bias == weights.end() ? at::Tensor() : bias->second, routing);
    return sets(routing.ids);
  }

  static std::vector<std::set<int64_t>> sets(const at::Tensor& ids) {
    std::vector<std::set<int64_t>> out(static_cast<size_t>(ids.size(0)));
    for (int64_t t = 0; t < ids.size(0); ++t)
      for (int64_t k = 0; k < ids.size(1); ++k) out[t].insert(ids[t][k].item<int64_t>());
    return out;
  }

  hero::Transformer model;
  oracle::Weights weights;
  at::Tensor tokens;
  oracle::Result expected;
  std::vector<hero::Routing> routings;
};

double mean_part(const std::vector<std::set<int64_t>>& a, const std::vector<std::set<int64_t>>& b) {
  double sum = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    for (const int64_t e : a[t]) sum += static_cast<double>(b[t].count(e)) / static_cast<double>(a[t].size());
  }
  return sum / static_cast<double>(a.size());
}

double mean_kl(const at::Tensor& z, const at::Tensor& other) {
  const auto q = z.softmax(1), p = other.softmax(1);
  double sum = 0;
  for (int64_t t = 0; t < z.size(0); ++t) {
    for (int64_t e = 0; e < z.size(1); ++e) {
      const double a = q[t][e].item<double>(), b = p[t][e].item<double>();
      sum += a * std::log(a / b);
    }
  }
  return sum / static_cast<double>(z.size(0));
}

double mean_equal_best(const at::Tensor& a, const at::Tensor& b) {
  return mean_part(Example::sets(oracle::topk_indices(a, 1)), Example::sets(oracle::topk_indices(b, 1)));
}

double variance(const at::Tensor& z) { return (z - z.mean(1, true)).pow(2).mean().item<double>(); }

void expect_all(const hero::Config& config) {
  const Example example(config);
  hero::HistorySums sums(example.model);
  sums.add(example.routings);
  EXPECT_EQ(sums.tokens(), kBatch * kLength);
  const auto layers = static_cast<int64_t>(example.expected.layers.size());
  const auto none = at::zeros({layers, layers}, at::kDouble);
  hero::Removal want{none.clone(), none.clone()}, want_centered{none.clone(), none.clone()};
  for (int64_t l = 1; l <= layers; ++l) {
    SCOPED_TRACE("layer " + std::to_string(l));
    const auto direct = example.direct(l);
    const auto parts = hero::branches(example.model, example.routings, l);
    EXPECT_LT(small::relative_error(parts.hidden, direct.z_o), 1e-9);
    ASSERT_EQ(parts.predecessors.size(), direct.seen.size());
    if (direct.seen.empty()) continue;
    EXPECT_LT(small::relative_error(parts.history, direct.z_r), 1e-9);
    const auto z = direct.z_o + direct.z_r;
    const auto ids = example.chosen(l, z);
    ASSERT_EQ(ids, Example::sets(example.routings[l - 1].ids));
    for (size_t m = 0; m < direct.seen.size(); ++m) {
      EXPECT_LT(small::relative_error(parts.predecessors[m], direct.z_rp[m]), 1e-9);
      EXPECT_LT(small::relative_error(parts.centered[m], direct.centered[m]), 1e-9);
      for (const auto& [removal, part] :
           {std::pair{&want, direct.z_rp[m]}, std::pair{&want_centered, direct.centered[m]}}) {
        const auto without = z - part;
        removal->change_LL[l - 1][direct.seen[m] - 1] = 1 - mean_part(ids, example.chosen(l, without));
        removal->kl_LL[l - 1][direct.seen[m] - 1] = mean_kl(z, without);
      }
    }
    const auto use = sums.use(l);
    const int64_t k = config.model.num_experts_per_tok;
    EXPECT_NEAR(use.variance_share, variance(direct.z_r) / (variance(direct.z_r) + variance(direct.z_o)),
                1e-9);
    EXPECT_NEAR(use.agreement, mean_part(ids, example.chosen(l, direct.z_o)), 1e-12);
    EXPECT_NEAR(use.agreement_1, mean_equal_best(z, direct.z_o), 1e-12);
    EXPECT_NEAR(use.history_only, mean_part(ids, Example::sets(oracle::topk_indices(direct.z_r, k))), 1e-12);
    EXPECT_NEAR(use.history_only_1, mean_equal_best(z, direct.z_r), 1e-12);
    EXPECT_NEAR(use.history_only_kl, mean_kl(z, direct.z_r), 1e-9);
  }
  for (const auto& [removed, wanted] : {std::pair{hero::Contribution::kRaw, &want},
                                        std::pair{hero::Contribution::kCentered, &want_centered}}) {
    const auto found = sums.removal(removed);
    EXPECT_LT((found.change_LL - wanted->change_LL).abs().max().item<double>(), 1e-12);
    EXPECT_LT((found.kl_LL - wanted->kl_LL).abs().max().item<double>(), 1e-9);
    EXPECT_GT(found.change_LL.max().item<double>(), 0.01);  // removal has an effect in this example
  }
}

TEST(Branches, MatchDirectComputation) {
  for (const auto& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    expect_all(analyze::config_of(variant));
  }
}

TEST(Branches, GroupsSigmoidScoresBiasAndCapacity) {
  auto config = small::deepseek();
  config.model.scoring_func = hero::ScoringFunc::kSigmoid;
  config.model.n_group = 4;
  config.model.topk_group = 2;
  config.model.routed_scaling_factor = 2.5;
  config.router.stages = 2;
  expect_all(config);
}

TEST(Branches, HistoryWithGradient) {
  auto config = analyze::config_of(kVariants[1]);
  config.router.detach = false;
  expect_all(config);
}

// Removing a zero block changes nothing, bitwise.
TEST(Branches, ZeroBlocksChangeNothing) {
  auto config = small::qwen();
  config.train.dtype = hero::Dtype::kFp32;
  hero::Transformer model(config);
  small::perturb(model, 0.1, 2);
  const at::NoGradGuard no_grad;
  for (const auto& layer : model.layers()) {
    const auto& router = layer.moe()->router();
    if (router.layer() > 2) router.weight().slice(1, 24, 32).zero_();  // of layer 1
  }
  hero::HistorySums sums(model);
  sums.add(model.forward(small::tokens(1, 50, 37, 4)).routings);
  const auto [change, kl] = sums.removal(hero::Contribution::kRaw);
  for (const int64_t l : {3, 4}) {
    EXPECT_EQ(change[l - 1][0].item<double>(), 0);
    EXPECT_EQ(kl[l - 1][0].item<double>(), 0);
    EXPECT_GT(change[l - 1][1].item<double>(), 0);
  }
}

// Sums over subsets of the tokens, across calls and within one, equal the sum over all.
TEST(Branches, SumsAreAdditiveOverTokens) {
  const Example example(analyze::config_of(kVariants[0]));
  const auto places = [](int64_t first, int64_t last) { return at::arange(first, last, at::kLong); };
  hero::HistorySums whole(example.model), parts(example.model), repeated(example.model);
  whole.add(example.routings);
  parts.add(hero::select_tokens(example.routings, places(0, 13)));
  parts.add(hero::select_tokens(example.routings, places(13, kBatch * kLength)));
  repeated.add(hero::select_tokens(example.routings, places(0, kBatch * kLength).repeat(60)));  // > 4096
  for (const auto* other : {&parts, &repeated}) {
    for (const auto removed : {hero::Contribution::kRaw, hero::Contribution::kCentered}) {
      const auto found = other->removal(removed), expected = whole.removal(removed);
      EXPECT_LT(small::relative_error(found.kl_LL, expected.kl_LL), 1e-12);
      EXPECT_LT(small::relative_error(found.change_LL, expected.change_LL), 1e-12);
    }
    EXPECT_NEAR(other->use(5).variance_share, whole.use(5).variance_share, 1e-12);
    EXPECT_NEAR(other->use(5).history_only_kl, whole.use(5).history_only_kl, 1e-12);
  }
}

// In bf16 the stored history is rounded; the variances of Z_O and Z_R must still match the router's.
TEST(Branches, VarianceShareMatchesRouterInBf16) {
  hero::Transformer model(small::fused(small::qwen()));
  small::perturb(model, 0.1, 6);
  const at::NoGradGuard no_grad;
  const auto routings = model.forward(small::tokens(2, 64, 96, 1)).routings;
  hero::HistorySums sums(model);
  sums.add(routings);
  for (int64_t l = 2; l <= 4; ++l) {
    const auto means = routings[l - 1].stats.mean(0, false, at::kDouble);
    const double hidden = means[hero::ops::kHiddenVariance].item<double>(),
                 history = means[hero::ops::kHistoryVariance].item<double>();
    EXPECT_NEAR(sums.use(l).variance_share, history / (hidden + history), 1e-5);
  }
}

TEST(Branches, InitialVarianceShareOfProposition5) {
  const auto share = [](const hero::Config& config, int64_t l) {
    return hero::initial_variance_share(config, hero::HistoryLayout(5, 8, config.router), l);
  };
  auto config = analyze::config_of(kVariants[1]);  // layers 1 to 3, 4 to 5; D = 24, E = 8
  EXPECT_EQ(*share(config, 1), 0);
  EXPECT_DOUBLE_EQ(*share(config, 3), 16.0 / 40.0);
  EXPECT_EQ(*share(config, 4), 0);
  EXPECT_DOUBLE_EQ(*share(config, 5), 32.0 / 56.0);
  config.router.scale = false;
  EXPECT_FALSE(share(config, 5));
  EXPECT_EQ(*share(config, 4), 0);
  config.router.init = hero::RouterInit::kZero;
  EXPECT_EQ(*share(config, 5), 0);
}

}  // namespace branches_test
