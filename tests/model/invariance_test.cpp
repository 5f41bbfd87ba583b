// A token's logits depend only on earlier tokens of its own sequence.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <functional>

#include "oracle/small_models.h"

namespace invariance_test {

// fp64, relative to the largest logit; the order of sums may depend on the batch.
constexpr double kTolerance = 1e-12;

struct Case {
  std::string name;
  hero::Config config;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (auto base : {small::qwen(), small::deepseek()}) {
    const std::string family = name_of(base.model.model_type);
    list.push_back({family + "_hero", base});
    auto stages = base;
    stages.router.stages = 2, stages.router.window = 1;
    list.push_back({family + "_stages", stages});
    auto differentiable = base;
    differentiable.router.detach = false;
    list.push_back({family + "_not_detached", differentiable});
    base.router.kind = "baseline";
    list.push_back({family + "_baseline", base});
  }
  return list;
}

class Invariance : public testing::TestWithParam<Case> {
 protected:
  Invariance() : model_(GetParam().config) { small::perturb(model_, 0.1, 7); }

  at::Tensor logits(const at::Tensor& tokens) const {
    at::NoGradGuard no_grad;
    return model_.logits(model_.forward(tokens).hidden_TD, tokens.size(0));
  }

  hero::Transformer model_;
  at::Tensor tokens_ = small::tokens(3, 11, GetParam().config.model.vocab_size, 5);
};

TEST_P(Invariance, SequenceAloneMatchesSequenceInBatch) {
  const auto together = logits(tokens_);
  for (int64_t b = 0; b < 3; ++b) {
    EXPECT_LT(small::relative_error(logits(tokens_.slice(0, b, b + 1))[0], together[b]), kTolerance)
        << "sequence " << b;
  }
}

TEST_P(Invariance, RightPaddingDoesNotChangeLogits) {
  const auto padded = at::cat({tokens_, at::zeros({3, 6}, at::kLong)}, 1);
  EXPECT_LT(small::relative_error(logits(padded).slice(1, 0, 11), logits(tokens_)), kTolerance);
}

TEST_P(Invariance, LaterTokensDoNotChangeEarlierLogits) {
  const auto before = logits(tokens_);
  for (const int64_t position : {1, 6, 10}) {
    auto changed = tokens_.clone();
    changed.select(1, position).add_(1).remainder_(GetParam().config.model.vocab_size);
    const auto after = logits(changed);
    EXPECT_LT(small::relative_error(after.slice(1, 0, position), before.slice(1, 0, position)), kTolerance)
        << position;
    EXPECT_GT(small::relative_error(after.select(1, position), before.select(1, position)), 1e-3) << position;
  }
}

TEST_P(Invariance, OrderOfSequencesDoesNotMatter) {
  const auto order = at::tensor({2, 0, 1}, at::kLong);
  EXPECT_LT(
      small::relative_error(logits(tokens_.index_select(0, order)), logits(tokens_).index_select(0, order)),
      kTolerance);
}

TEST_P(Invariance, RepeatedForwardPassIsBitwiseEqual) { EXPECT_TRUE(logits(tokens_).equal(logits(tokens_))); }

INSTANTIATE_TEST_SUITE_P(Families, Invariance, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace invariance_test
