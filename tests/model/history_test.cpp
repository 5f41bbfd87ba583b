// Routing history: visible layers and memory layout (one buffer per stage, read as column ranges).
#include "model/history.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/history_bytes.h"
#include "model/router.h"
#include "oracle/oracle.h"
#include "oracle/small_models.h"

namespace history_test {

hero::RouterConfig router(int64_t stages, int64_t window, hero::HistoryScope scope) {
  hero::RouterConfig r;
  r.kind = "hero";
  r.stages = stages;
  r.window = window;
  r.history = scope;
  return r;
}

TEST(History, VisibleLayersMatchTheDefinition) {
  for (const int64_t stages : {1, 2, 3, 7}) {
    for (const int64_t window : {0, 1, 2, 5}) {
      for (const auto scope : {hero::HistoryScope::kStage, hero::HistoryScope::kGlobal}) {
        const auto r = router(stages, window, scope);
        const hero::HistoryLayout layout(7, 4, r);
        EXPECT_EQ(layout.stage_of(), oracle::stages(7, stages));
        for (int64_t l = 1; l <= 7; ++l) {
          const auto want = oracle::visible(l, r, oracle::stages(7, stages));
          EXPECT_EQ(layout.visible(l), want);
          const double factor =
              want.empty() ? 1.0 : std::sqrt(static_cast<double>(l - 1) / static_cast<double>(want.size()));
          EXPECT_DOUBLE_EQ(layout.depth_factor(l), factor);
        }
      }
    }
  }
}

TEST(History, LayersReadWhatVisibleLayersWrote) {
  for (const int64_t stages : {1, 2, 3}) {
    for (const int64_t window : {0, 1, 2}) {
      for (const auto scope : {hero::HistoryScope::kStage, hero::HistoryScope::kGlobal}) {
        const auto r = router(stages, window, scope);
        const hero::HistoryLayout layout(7, 4, r);
        const hero::RoutingHistory history(layout, 3, at::kDouble, false);
        for (int64_t l = 1; l <= 7; ++l) {
          const auto visible = history.visible(l, r);
          ASSERT_EQ(visible.has_value(), !layout.visible(l).empty());
          for (size_t m = 0; m < layout.visible(l).size(); ++m) {
            const auto j = static_cast<double>(layout.visible(l)[m]);
            EXPECT_TRUE(visible->probs.slice(1, m * 4, (m + 1) * 4).eq(j).all().item<bool>())
                << "layer " << l;
            EXPECT_TRUE(visible->sumsq.select(1, m).eq(-j).all().item<bool>()) << "layer " << l;
          }
          const auto slot = history.slot(l);
          if (!slot.probs.defined()) continue;
          slot.probs.fill_(static_cast<double>(l));
          slot.sumsq.fill_(-static_cast<double>(l));
        }
      }
    }
  }
}

TEST(History, OneBufferPerStageWithoutTheLastLayer) {
  const auto bytes = [](const hero::RouterConfig& r) {
    const hero::HistoryLayout layout(6, 8, r);
    return hero::test::history_bytes(hero::RoutingHistory(layout, 10, at::kBFloat16, false), 6);
  };
  const int64_t slot = 10 * (8 * 2 + 4);  // bf16 probabilities and one fp32 sum of squares
  EXPECT_EQ(bytes(router(1, 0, hero::HistoryScope::kStage)), 5 * slot);
  EXPECT_EQ(bytes(router(2, 0, hero::HistoryScope::kStage)), 4 * slot);
  EXPECT_EQ(bytes(router(2, 0, hero::HistoryScope::kGlobal)), 5 * slot);
  EXPECT_EQ(bytes(router(6, 0, hero::HistoryScope::kStage)), 0);
  auto baseline = router(1, 0, hero::HistoryScope::kStage);
  baseline.kind = "baseline";
  EXPECT_EQ(bytes(baseline), 0);
}

TEST(History, IsNeverCopied) {
  const auto r = router(1, 2, hero::HistoryScope::kStage);
  const hero::HistoryLayout layout(5, 4, r);
  const hero::RoutingHistory history(layout, 3, at::kDouble, false);
  const auto* begin = static_cast<const double*>(history.slot(1).probs.data_ptr());
  for (int64_t l = 2; l <= 5; ++l) {
    const auto first = layout.visible(l).front();
    EXPECT_EQ(history.visible(l, r)->probs.data_ptr(), begin + (first - 1) * 4);
    EXPECT_EQ(history.visible(l, r)->probs.stride(0), 4 * 4);
  }
}

// The stored distribution is the softmax of the final logits for any score function, bias, groups and
// capacity.
TEST(History, IsTheSoftmaxForAnyRoutingPolicy) {
  auto plain = small::deepseek();
  auto sparse = plain;
  sparse.model.scoring_func = hero::ScoringFunc::kSigmoid;
  sparse.model.n_group = 4;
  sparse.model.topk_group = 1;
  sparse.model.num_experts_per_tok = 2;
  sparse.router.capacity_factor = 0.5;
  for (const auto& c : {plain, sparse}) {
    hero::HistoryLayout layout(2, 8, c.router);
    hero::Parameters parameters(at::kDouble, 1);
    const hero::Moe first(parameters, "model.layers.0.mlp", 1, c, layout, hero::whole_model(c));
    hero::RoutingHistory history(layout, 9, at::kDouble, false);
    const auto out = first(small::normal({9, 24}, 2), history, {.training = true});
    EXPECT_LT(small::relative_error(history.slot(1).probs, out.routing.logits.softmax(1)), 1e-15);
    EXPECT_LT(small::relative_error(history.slot(1).sumsq, out.routing.logits.softmax(1).pow(2).sum(1)),
              1e-15);
    EXPECT_FALSE(history.slot(1).probs.requires_grad());
  }
}

// Router logits in fp64 from the same input and history.
at::Tensor exact_logits(const hero::Router& router, const at::Tensor& x,
                        const std::vector<at::Tensor>& visible, double depth_factor, double eps) {
  const auto wide = x.to(at::kDouble), w = router.weight().detach().to(at::kDouble);
  const auto logits = at::mm(wide, w.slice(1, 0, x.size(1)).t());
  if (visible.empty()) return logits;
  const auto h = at::cat(visible, 1).to(at::kDouble);
  const auto rms = [](const at::Tensor& rows) { return rows.pow(2).mean(1, true).sqrt(); };
  return logits + rms(wide) / (rms(h) + eps) * depth_factor * at::mm(h, w.slice(1, x.size(1)).t());
}

// In bf16 the history holds the fp32 softmax rounded once, with and without gradient. Values within 1e-5 of
// the midpoint of two bf16 numbers may be rounded to either.
TEST(History, IsRoundedOnceWithAndWithoutGradient) {
  for (const auto& c : {small::qwen(), small::fused(small::qwen())}) {
    const int64_t tokens = 40, layers = 4;
    const hero::HistoryLayout layout(layers, c.model.num_experts, c.router);
    hero::Parameters parameters(at::kBFloat16, 1);
    hero::RoutingHistory buffered(layout, tokens, at::kBFloat16, /*differentiable=*/false),
        differentiable(layout, tokens, at::kBFloat16, /*differentiable=*/true);
    std::vector<at::Tensor> from_buffer, from_tensors;
    for (int64_t l = 1; l < layers; ++l) {
      const hero::Router router(parameters, std::to_string(l), l, c, layout);
      const auto x = small::normal({tokens, c.model.hidden_size}, l).to(at::kBFloat16);
      const auto detached = router(x, buffered), through = router(x, differentiable);
      const auto check = [&](const hero::ops::RouteOutput& out, const at::Tensor& stored,
                             std::vector<at::Tensor>& visible) {
        const auto exact = exact_logits(router, x, visible, layout.depth_factor(l), c.router.eps);
        EXPECT_LT(small::relative_error(out.logits, exact), 1e-5) << "layer " << l;
        const auto probs = exact.softmax(1), got = stored.detach().to(at::kDouble);
        const auto rounded = [&](double off) {
          return (probs * (1 + off)).to(at::kFloat).to(at::kBFloat16).to(at::kDouble);
        };
        EXPECT_TRUE(got.ge(rounded(-1e-5)).logical_and(got.le(rounded(1e-5))).all().item<bool>())
            << "layer " << l;
        visible.push_back(stored);
      };
      check(detached, buffered.slot(l).probs, from_buffer);
      check(through, differentiable.visible_differentiable(l + 1).back(), from_tensors);
    }
  }
}

TEST(History, RoundingKeepsTheGradient) {
  const auto c = small::qwen();
  const hero::HistoryLayout layout(2, 8, c.router);
  hero::RoutingHistory history(layout, 9, at::kBFloat16, /*differentiable=*/true);
  const auto probs = small::normal({9, 8}, 1).softmax(1).to(at::kFloat).set_requires_grad(true),
             upstream = small::normal({9, 8}, 2).to(at::kFloat);
  history.store_differentiable(1, probs);
  const auto stored = history.visible_differentiable(2)[0];
  EXPECT_TRUE(at::equal(stored.detach(), probs.detach().to(at::kBFloat16).to(at::kFloat)));
  EXPECT_TRUE(at::equal(torch::autograd::grad({stored}, {probs}, {upstream})[0], upstream));
}

}  // namespace history_test
