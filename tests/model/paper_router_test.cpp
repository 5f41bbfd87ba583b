// The equations of the paper's method section and Propositions 1 and 3, Corollary 2, on a stack of routers in
// fp64.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "oracle/oracle.h"
#include "oracle/router_stack.h"

namespace paper_router_test {

constexpr int64_t kLayers = 6, kTokens = 10;
constexpr double kExact = 1e-13;  // fp64, relative to the largest value

hero::Config config(int64_t stages, double eps = 1e-6) {
  auto c = small::qwen();
  c.router.stages = stages;
  c.router.eps = eps;
  return c;
}

// Runs the stack and calls `check` for each layer with its input, weights, visible history and output.
template <typename Check>
void for_each_layer(const hero::Config& c, const Check& check) {
  const small::RouterStack stack(c, kLayers, 21);
  const auto xs = small::inputs(kLayers, kTokens, c.model.hidden_size, 31);
  const auto out = stack(xs);
  for (int64_t l = 1; l <= kLayers; ++l) {
    std::vector<at::Tensor> history;
    for (const int64_t j : stack.layout.visible(l)) history.push_back(out[j - 1].probs.detach());
    check(l, xs[l - 1], stack.weight(l).detach(), history, out[l - 1]);
  }
}

using Rows = std::vector<at::Tensor>;
using Output = hero::ops::RouteOutput;
using hero::ops::RouteStat;

TEST(PaperMethod, OriginalRouterLogits) {
  auto c = config(1);
  c.router.kind = "baseline";
  for_each_layer(c, [](int64_t, const at::Tensor& x, const at::Tensor& w, const Rows& h, const Output& out) {
    EXPECT_TRUE(h.empty());
    EXPECT_EQ(w.sizes(), at::IntArrayRef({8, 24}));
    EXPECT_LT(small::relative_error(out.logits, at::matmul(x, w.t())), kExact);
  });
}

TEST(PaperMethod, SoftmaxOverExperts) {
  for_each_layer(config(1),
                 [](int64_t, const at::Tensor&, const at::Tensor&, const Rows&, const Output& out) {
                   const auto e = out.logits.exp();
                   EXPECT_LT(small::relative_error(out.probs, e / e.sum(1, true)), kExact);
                   EXPECT_LT((out.probs.sum(1) - 1).abs().max().item<double>(), kExact);
                 });
}

TEST(PaperMethod, FinalLogitsAreOriginalPlusResidual) {
  for (const int64_t stages : {1, 2, 3}) {
    for_each_layer(config(stages),
                   [](int64_t l, const at::Tensor& x, const at::Tensor& w, const Rows& h, const Output& out) {
                     const auto z_o = at::matmul(x, w.slice(1, 0, 24).t());
                     if (h.empty()) {
                       EXPECT_LT(small::relative_error(out.logits, z_o), kExact);
                       return;
                     }
                     const auto concatenated = at::cat(h, 1);
                     const auto rho = oracle::rms(x) / (oracle::rms(concatenated) + 1e-6) *
                                      std::sqrt((l - 1.0) / static_cast<double>(h.size()));
                     const auto z_r = at::matmul(rho * concatenated, w.slice(1, 24).t());
                     EXPECT_LT(small::relative_error(out.logits, z_o + z_r), kExact) << "layer " << l;
                     EXPECT_GT(z_r.abs().max().item<double>(), 1e-2);
                     const auto hidden = out.stats.select(1, RouteStat::kHiddenVariance),
                                history = out.stats.select(1, RouteStat::kHistoryVariance);
                     EXPECT_LT(small::relative_error(hidden, z_o.var(1, false)), 1e-12);
                     EXPECT_LT(small::relative_error(history, z_r.var(1, false)), 1e-12);
                   });
  }
}

TEST(PaperMethod, RmsAndRhoPerToken) {
  for (const int64_t stages : {1, 2}) {
    for_each_layer(config(stages, 1e-3),
                   [](int64_t l, const at::Tensor& x, const at::Tensor&, const Rows& h, const Output& out) {
                     for (int64_t t = 0; t < kTokens; ++t) {
                       double squares_x = 0, squares_h = 0;
                       for (int64_t i = 0; i < 24; ++i) squares_x += std::pow(x[t][i].item<double>(), 2);
                       for (const auto& q : h) squares_h += q[t].pow(2).sum().item<double>();
                       const double rms_x = std::sqrt(squares_x / 24);
                       EXPECT_NEAR(out.stats[t][RouteStat::kRmsHidden].item<double>(), rms_x, 1e-14);
                       if (h.empty()) {
                         EXPECT_EQ(out.stats[t][RouteStat::kRmsHistory].item<double>(), 0.0);
                         EXPECT_EQ(out.stats[t][RouteStat::kRho].item<double>(), 0.0);
                         continue;
                       }
                       const auto m = static_cast<double>(h.size());
                       const double rms_h = std::sqrt(squares_h / (8 * m));
                       EXPECT_NEAR(out.stats[t][RouteStat::kRmsHistory].item<double>(), rms_h, 1e-14);
                       EXPECT_NEAR(out.stats[t][RouteStat::kRho].item<double>(),
                                   rms_x / (rms_h + 1e-3) * std::sqrt((l - 1) / m), 1e-12);
                     }
                   });
  }
}

TEST(PaperMethod, HistoryIsConcatenatedOldestFirst) {
  // With W_R the identity on the m-th visible layer's block, the logits are that layer's probabilities.
  auto c = config(2);
  c.router.scale = false;
  small::RouterStack stack(c, kLayers, 21);
  const auto xs = small::inputs(kLayers, kTokens, 24, 31);
  const int64_t l = 6;  // sees 4 and 5
  ASSERT_EQ(stack.layout.visible(l), (std::vector<int64_t>{4, 5}));
  for (const int64_t m : {0, 1}) {
    {
      at::NoGradGuard no_grad;
      auto& w = stack.parameters.all()[l - 1].values;
      w.zero_();
      w.slice(1, 24 + m * 8, 24 + (m + 1) * 8).copy_(at::eye(8, at::kDouble));
    }
    const auto out = stack(xs);
    EXPECT_LT(small::relative_error(out[l - 1].logits, out[3 + m].probs), kExact);
  }
}

TEST(PaperMethod, NoScalingMeansRhoOne) {
  auto c = config(2);
  c.router.scale = false;
  for_each_layer(c, [](int64_t, const at::Tensor& x, const at::Tensor& w, const Rows& h, const Output& out) {
    if (h.empty()) return;
    EXPECT_TRUE(out.stats.select(1, RouteStat::kRho).eq(1).all().item<bool>());
    const auto z = at::matmul(x, w.slice(1, 0, 24).t()) + at::matmul(at::cat(h, 1), w.slice(1, 24).t());
    EXPECT_LT(small::relative_error(out.logits, z), kExact);
  });
}

TEST(PaperProposition1, WithoutHistoryTheRouterIsTheBaseline) {
  auto baseline = config(1);
  baseline.router.kind = "baseline";
  // One stage per layer: no layer sees another.
  const small::RouterStack isolated(config(kLayers), kLayers, 21), conventional(baseline, kLayers, 21);
  const auto xs = small::inputs(kLayers, kTokens, 24, 31);
  const auto a = isolated(xs);
  auto history = conventional.history(kTokens);
  for (int64_t l = 1; l <= kLayers; ++l) {
    ASSERT_EQ(isolated.weight(l).sizes(), conventional.weight(l).sizes());
    {
      at::NoGradGuard no_grad;
      conventional.weight(l).detach().copy_(isolated.weight(l));
    }
    const auto b = conventional.routers[l - 1](xs[l - 1], history);
    EXPECT_TRUE(a[l - 1].logits.equal(b.logits));
    EXPECT_TRUE(a[l - 1].probs.equal(b.probs));
  }
}

TEST(PaperProposition1, ConcatenatedWeightEqualsTheSumOfBranches) {
  for (const int64_t stages : {1, 2}) {
    for_each_layer(config(stages), [](int64_t l, const at::Tensor& x, const at::Tensor& w, const Rows& h,
                                      const Output& out) {
      if (h.empty()) return;
      const auto u = at::cat({x, out.stats.narrow(1, RouteStat::kRho, 1) * at::cat(h, 1)}, 1);
      ASSERT_EQ(w.size(1), 24 + static_cast<int64_t>(h.size()) * 8);
      EXPECT_LT(small::relative_error(out.logits, at::matmul(u, w.t())), kExact) << "layer " << l;
    });
  }
}

TEST(PaperProposition1, ZeroHistoryWeightsGiveTheOriginalBranch) {
  auto zero = config(1);
  zero.router.init = hero::RouterInit::kZero;
  for_each_layer(zero, [](int64_t, const at::Tensor& x, const at::Tensor& w, const Rows&, const Output& out) {
    EXPECT_LT(small::relative_error(out.logits, at::matmul(x, w.slice(1, 0, 24).t())), kExact);
  });
}

TEST(PaperProposition3, RmsOfTheScaledHistory) {
  for (const double eps : {0.0, 1e-6, 0.05}) {
    for (const int64_t stages : {1, 2, 3}) {
      for_each_layer(config(stages, eps), [&](int64_t l, const at::Tensor& x, const at::Tensor&,
                                              const Rows& h, const Output& out) {
        if (h.empty()) return;
        const auto concatenated = at::cat(h, 1), r_x = oracle::rms(x), r_h = oracle::rms(concatenated);
        const double depth = std::sqrt((l - 1.0) / static_cast<double>(h.size()));
        const auto scaled = out.stats.narrow(1, RouteStat::kRho, 1) * concatenated;
        EXPECT_LT(small::relative_error(oracle::rms(scaled), r_x * depth * (r_h / (r_h + eps))), kExact);
        if (eps == 0) {
          EXPECT_LT(small::relative_error(oracle::rms(scaled), r_x * depth), kExact);
        }
      });
    }
  }
}

TEST(PaperCorollary2, HistoricalEnergyDoesNotDependOnTheVisibleLayers) {
  for (const double eps : {0.0, 0.05}) {
    for (const int64_t stages : {1, 2, 3}) {
      for_each_layer(config(stages, eps), [&](int64_t l, const at::Tensor& x, const at::Tensor&,
                                              const Rows& h, const Output& out) {
        if (h.empty()) return;
        const auto concatenated = at::cat(h, 1), r_x = oracle::rms(x), r_h = oracle::rms(concatenated);
        const auto energy = (out.stats.narrow(1, RouteStat::kRho, 1) * concatenated).pow(2).sum(1, true);
        const auto ideal = (l - 1.0) * 8 * r_x.pow(2);
        EXPECT_LT(small::relative_error(energy, ideal * (r_h / (r_h + eps)).pow(2)), kExact);
        EXPECT_EQ(small::relative_error(energy, ideal) < kExact, eps == 0);
      });
    }
  }
}

}  // namespace paper_router_test
