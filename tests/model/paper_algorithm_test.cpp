// Algorithm 1 (initialization) and Algorithm 2 (stage-local historical routing) of the paper, line by line.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/policy.h"
#include "oracle/oracle.h"
#include "oracle/router_stack.h"
#include "oracle/sparse.h"

namespace paper_algorithm_test {

// Kolmogorov-Smirnov distance between values and the uniform distribution on [-b, b].
double distance_to_uniform(const at::Tensor& values, double b) {
  const auto sorted = std::get<0>(values.flatten().to(at::kDouble).sort());
  const auto n = sorted.size(0);
  const auto value = sorted.accessor<double, 1>();
  double distance = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double cdf = (value[i] + b) / (2 * b);
    distance = std::max({distance, cdf - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - cdf});
  }
  return distance;
}

TEST(PaperAlgorithm1, Initialization) {
  const int64_t layers = 8, d = 64, experts = 32;
  for (const int64_t stages : {1, 2, 3}) {
    auto c = small::fused(small::qwen());
    c.train.dtype = hero::Dtype::kFp32;
    c.router.stages = stages;
    const auto pi = oracle::stages(layers, stages);
    const small::RouterStack stack(c, layers, 5);
    for (int64_t l = 1; l <= layers; ++l) {
      // 1. visible layers
      std::vector<int64_t> s;
      for (int64_t j = 1; j < l; ++j) {
        if (pi[j - 1] == pi[l - 1]) s.push_back(j);
      }
      const auto m = static_cast<int64_t>(s.size());
      EXPECT_EQ(stack.layout.visible(l), s);
      // 2. physical dimension
      const int64_t width = d + m * experts;
      const auto w = stack.weight(l).detach();
      ASSERT_EQ(w.sizes(), at::IntArrayRef({experts, width}));
      // 3. bound from the global depth
      const double b = 1.0 / std::sqrt(static_cast<double>(d + (l - 1) * experts));
      // 4. all elements uniform on [-b, b]: range, extremes close to both bounds, distribution of each block
      // (KS, alpha = 1e-6)
      const auto n = static_cast<double>(w.numel());
      EXPECT_LE(w.abs().max().item<double>(), b * (1 + 1e-7));
      EXPECT_GT(w.max().item<double>(), b * (1 - 20 / n));
      EXPECT_LT(w.min().item<double>(), -b * (1 - 20 / n));
      const auto accepted = [](const at::Tensor& block) {
        return 2.7 / std::sqrt(static_cast<double>(block.numel()));
      };
      EXPECT_LT(distance_to_uniform(w.slice(1, 0, d), b), accepted(w.slice(1, 0, d))) << "layer " << l;
      for (int64_t i = 0; i < m; ++i) {
        const auto block = w.slice(1, d + i * experts, d + (i + 1) * experts);
        EXPECT_LT(distance_to_uniform(block, b), accepted(block)) << "layer " << l << ", block " << i;
      }
    }
  }
}

TEST(PaperAlgorithm1, BlocksAreIndependent) {
  auto c = small::fused(small::qwen());
  c.train.dtype = hero::Dtype::kFp32;
  const small::RouterStack stack(c, 4, 5);
  std::vector<at::Tensor> blocks;
  for (int64_t l = 1; l <= 4; ++l) {
    const auto w =
        stack.weight(l).detach().to(at::kDouble) * std::sqrt(3.0 * static_cast<double>(64 + (l - 1) * 32));
    for (int64_t first = 0; first < w.size(1); first += 32) blocks.push_back(w.slice(1, first, first + 32));
  }
  for (size_t a = 0; a < blocks.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      EXPECT_LT(std::abs((blocks[a] * blocks[b]).mean().item<double>()), 5.0 / 32) << a << " " << b;
    }
  }
}

struct RouterOutput {
  at::Tensor z, g, i, q;
};

// Algorithm 2 for one layer, in the paper's order and notation.
RouterOutput algorithm2(const at::Tensor& x, int64_t l, const std::vector<int64_t>& pi,
                        const std::vector<at::Tensor>& z, const at::Tensor& w, double eps,
                        const hero::Config& sparse) {
  std::vector<int64_t> s;
  for (int64_t j = 1; j < l; ++j) {
    if (pi[j - 1] == pi[l - 1]) s.push_back(j);
  }
  const auto m = static_cast<double>(s.size());
  at::Tensor u;
  if (s.empty()) {
    u = x;
  } else {
    std::vector<at::Tensor> q;
    for (const int64_t j : s) q.push_back(z[j - 1].softmax(1).detach());
    const auto h = at::cat(q, 1);
    const auto r_x = x.pow(2).mean(1, true).sqrt(), r_h = h.pow(2).mean(1, true).sqrt();
    const auto rho = r_x / (r_h + eps) * std::sqrt((static_cast<double>(l) - 1) / m);
    u = at::cat({x, rho * h}, 1);
  }
  oracle::LayerRouting r{.x = x, .logits = at::matmul(u, w.t())};
  oracle::select_experts(sparse, {}, r);
  return {r.logits, r.gates.gather(1, r.ids), r.ids, r.probs};
}

TEST(PaperAlgorithm2, StageLocalHistoricalRouting) {
  const int64_t layers = 7, tokens = 12;
  for (const int64_t stages : {1, 2, 3}) {
    for (const bool groups : {false, true}) {
      auto c = groups ? small::deepseek() : small::qwen();
      c.router.stages = stages;
      c.router.eps = 1e-3;
      if (groups) {
        c.model.n_group = 4;
        c.model.topk_group = 2;
        c.router.capacity_factor = 0.9;
        c.model.norm_topk_prob = false;
      }
      const small::RouterStack stack(c, layers, 8);
      const auto xs = small::inputs(layers, tokens, c.model.hidden_size, 60);
      auto history = stack.history(tokens);
      std::vector<at::Tensor> z;
      for (int64_t l = 1; l <= layers; ++l) {
        const auto want =
            algorithm2(xs[l - 1], l, oracle::stages(layers, stages), z, stack.weight(l).detach(), 1e-3, c);
        const auto got = stack.routers[l - 1](xs[l - 1], history);
        const auto selection =
            hero::sparse_route(got.logits, got.probs, {}, c.model, c.router, l, c.router.capacity_factor);
        EXPECT_LT(small::relative_error(got.logits, want.z), 1e-13);
        EXPECT_LT(small::relative_error(got.probs, want.q), 1e-13);
        EXPECT_TRUE(selection.ids.equal(want.i));
        EXPECT_LT(small::relative_error(selection.weights, want.g), 1e-13);
        z.push_back(want.z);
      }
    }
  }
}

}  // namespace paper_algorithm_test
