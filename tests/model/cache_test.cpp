// Decoding with a key-value cache gives the same hidden states as one forward pass (fp64, relative error
// 1e-10).
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "oracle/small_models.h"

namespace cache_test {

constexpr double kTolerance = 1e-10;

hero::Config deepseek_with_query_rank() {
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

  // Compares several cached passes with one forward pass. Pass p processes lengths[p][i] tokens of sequence
  // i.
  void compare(const std::vector<std::vector<int64_t>>& lengths) const {
    at::NoGradGuard no_grad;
    std::vector<hero::KeyValueCache> caches(lengths[0].size());
    std::vector<std::vector<at::Tensor>> outputs(caches.size());
    hero::Transformer::ExtensionBuffers buffers;
    for (const auto& pass : lengths) {
      std::vector<hero::KeyValueCache*> extended;
      std::vector<int64_t> counts;
      std::vector<at::Tensor> tokens;
      for (size_t i = 0; i < caches.size(); ++i) {
        if (pass[i] == 0) continue;
        extended.push_back(&caches[i]);
        counts.push_back(pass[i]);
        const int64_t first = caches[i].length;
        tokens.push_back(tokens_[static_cast<int64_t>(i)].slice(0, first, first + pass[i]));
      }
      const auto hidden = model_.extend(at::cat(tokens), extended, counts, buffers);
      auto split = hidden.split_with_sizes(counts);
      for (size_t i = 0, next = 0; i < caches.size(); ++i) {
        if (pass[i]) outputs[i].push_back(split[next++]);
      }
    }
    for (size_t i = 0; i < caches.size(); ++i) {
      const auto row = tokens_.slice(0, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1);
      ASSERT_EQ(caches[i].length, row.size(1));
      EXPECT_LT(small::relative_error(at::cat(outputs[i]), model_.forward(row).hidden_TD), kTolerance)
          << "sequence " << i;
    }
  }

  hero::Transformer model_;
  at::Tensor tokens_ = small::tokens(3, 12, GetParam().config.model.vocab_size, 6);
};

std::vector<std::vector<int64_t>> single_sequence(const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int64_t>> passes;
  for (const int64_t n : lengths) passes.push_back({n});
  return passes;
}

TEST_P(Cache, PrefillThenOneByOne) { compare(single_sequence({5, 1, 1, 1, 1, 1, 1, 1})); }
TEST_P(Cache, OneByOneFromTheStart) { compare(single_sequence(std::vector<int64_t>(12, 1))); }
TEST_P(Cache, ChunkedPrefill) { compare(single_sequence({4, 3, 1, 4})); }
TEST_P(Cache, BatchOfDifferentLengths) {
  compare({{7, 0, 0}, {0, 2, 0}, {1, 4, 0}, {1, 1, 9}, {0, 1, 1}, {2, 3, 1}, {1, 1, 1}});
}

// Appends more rows than the initial capacity.
TEST(CacheBuffer, KeepsItsRowsWhenItGrows) {
  hero::CacheBuffer rows;
  const auto all = at::arange(300 * 2 * 3, at::kDouble).view({300, 2, 3});
  for (int64_t first = 0; first < 300; first += 50) rows.append(all, first, 50);
  EXPECT_TRUE(rows.tensor().slice(0, 0, 300).equal(all));
  hero::CacheBuffer strided;
  strided.append(all.transpose(1, 2), 10, 40);
  EXPECT_TRUE(strided.tensor().slice(0, 0, 40).equal(all.transpose(1, 2).slice(0, 10, 50)));
}

INSTANTIATE_TEST_SUITE_P(Families, Cache,
                         testing::Values(Case{"qwen", small::qwen()},
                                         Case{"qwen_stages", stages(small::qwen())},
                                         Case{"deepseek", small::deepseek()},
                                         Case{"deepseek_query_rank", deepseek_with_query_rank()},
                                         Case{"deepseek_stages", stages(deepseek_with_query_rank())}),
                         [](const auto& info) { return info.param.name; });

}  // namespace cache_test
