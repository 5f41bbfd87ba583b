// Decoding with cached keys and values: the same logits as one pass over everything (fp64, 1e-10 of the
// largest).
#include <gtest/gtest.h>

#include "oracle/small_models.h"

namespace {

constexpr double kTolerance = 1e-10;

hero::Config latent_with_query_rank() {
  auto c = small::deepseek();
  c.model.q_lora_rank = 9;
  c.model.rope_interleave = false;
  c.model.n_shared_experts = 1;
  return c;
}

hero::Config stages(hero::Config c) {
  c.router.stages = 2;
  return c;
}

struct Case {
  std::string name;
  hero::Config config;
};

class Cache : public testing::TestWithParam<Case> {
 protected:
  Cache() : model_(GetParam().config) { small::perturb(model_, 0.1, 9); }

  at::Tensor logits(const at::Tensor& tokens, hero::KeyValueCache* cache) const {
    at::NoGradGuard no_grad;
    return model_.logits(model_.forward(tokens, {}, false, cache).hidden_TD, tokens.size(0));
  }

  // One pass over pieces of these lengths against one pass over everything.
  void compare(const std::vector<int64_t>& lengths) const {
    hero::KeyValueCache cache;
    std::vector<at::Tensor> pieces;
    int64_t first = 0;
    for (const int64_t n : lengths) {
      pieces.push_back(logits(tokens_.slice(1, first, first + n), &cache));
      first += n;
      EXPECT_EQ(cache.length, first);
    }
    ASSERT_EQ(first, tokens_.size(1));
    EXPECT_LT(small::relative_error(at::cat(pieces, 1), logits(tokens_, nullptr)), kTolerance);
  }

  hero::Transformer model_;
  at::Tensor tokens_ = small::tokens(2, 12, GetParam().config.model.vocab_size, 6);
};

TEST_P(Cache, PrefillThenOneByOne) { compare({5, 1, 1, 1, 1, 1, 1, 1}); }
TEST_P(Cache, OneByOneFromTheStart) { compare(std::vector<int64_t>(12, 1)); }
TEST_P(Cache, PiecesOfSeveralTokens) { compare({4, 3, 1, 4}); }

INSTANTIATE_TEST_SUITE_P(Families, Cache,
                         testing::Values(Case{"qwen", small::qwen()},
                                         Case{"qwen_stages", stages(small::qwen())},
                                         Case{"deepseek", small::deepseek()},
                                         Case{"deepseek_query_rank", latent_with_query_rank()},
                                         Case{"deepseek_stages", stages(latent_with_query_rank())}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
