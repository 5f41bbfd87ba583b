// Who sees whom, and where it lies: one buffer per stage, read as column ranges.
#include "model/history.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/router.h"
#include "oracle/oracle.h"
#include "oracle/small_models.h"

namespace {

hero::RouterConfig router(int64_t stages, int64_t window, const std::string& scope) {
  hero::RouterConfig r;
  r.kind = "hero";
  r.stages = stages;
  r.window = window;
  r.history = scope;
  return r;
}

TEST(History, VisibleLayersAgainstTheirDefinition) {
  for (const int64_t stages : {1, 2, 3, 7}) {
    for (const int64_t window : {0, 1, 2, 5}) {
      for (const char* scope : {"stage", "global"}) {
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

TEST(History, WhatALayerReadsIsWhatTheVisibleLayersWrote) {
  for (const int64_t stages : {1, 2, 3}) {
    for (const int64_t window : {0, 1, 2}) {
      for (const char* scope : {"stage", "global"}) {
        const auto r = router(stages, window, scope);
        const hero::HistoryLayout layout(7, 4, r);
        const hero::RoutingHistory history(layout, 3, at::kDouble, false);
        for (int64_t l = 1; l <= 7; ++l) {
          const auto seen = history.visible(l, r);
          ASSERT_EQ(seen.has_value(), !layout.visible(l).empty());
          for (size_t m = 0; m < layout.visible(l).size(); ++m) {
            const auto j = static_cast<double>(layout.visible(l)[m]);
            EXPECT_TRUE(seen->probs.slice(1, m * 4, (m + 1) * 4).eq(j).all().item<bool>()) << "layer " << l;
            EXPECT_TRUE(seen->sumsq.select(1, m).eq(-j).all().item<bool>()) << "layer " << l;
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
    return hero::RoutingHistory(hero::HistoryLayout(6, 8, r), 10, at::kBFloat16, false).bytes();
  };
  const int64_t slot = 10 * (8 * 2 + 4);  // bf16 probabilities and one fp32 sum of squares
  EXPECT_EQ(bytes(router(1, 0, "stage")), 5 * slot);
  EXPECT_EQ(bytes(router(2, 0, "stage")), 4 * slot);
  EXPECT_EQ(bytes(router(2, 0, "global")), 5 * slot);
  EXPECT_EQ(bytes(router(6, 0, "stage")), 0);
  auto baseline = router(1, 0, "stage");
  baseline.kind = "baseline";
  EXPECT_EQ(bytes(baseline), 0);
}

TEST(History, IsNeverCopied) {
  const auto r = router(1, 2, "stage");
  const hero::HistoryLayout layout(5, 4, r);
  const hero::RoutingHistory history(layout, 3, at::kDouble, false);
  const auto* begin = static_cast<const double*>(history.slot(1).probs.data_ptr());
  for (int64_t l = 2; l <= 5; ++l) {
    const auto first = layout.visible(l).front();
    EXPECT_EQ(history.visible(l, r)->probs.data_ptr(), begin + (first - 1) * 4);
    EXPECT_EQ(history.visible(l, r)->probs.stride(0), 4 * 4);
  }
}

// The stored distribution is the softmax of the final logits whatever score function, bias, groups or
// capacity follow.
TEST(History, IsTheSoftmaxWhateverThePolicyMakesOfTheLogits) {
  auto plain = small::deepseek();
  auto sparse = plain;
  sparse.model.scoring_func = "sigmoid";
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

}  // namespace
