// A prompt that continues a cache of its first tokens generates as one that is computed as a whole.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "inference/sampler.h"
#include "oracle/small_models.h"

namespace hero {
namespace generator_test {

struct Generated {
  std::vector<int64_t> ids;
  std::vector<double> logprobs;
};

// All tokens of one sequence.
Generated run(const Transformer& model, const std::vector<int64_t>& prompt, SamplingParams sampling,
              std::shared_ptr<KeyValueCache> cache = {}) {
  sampling.logprobs = 0;
  Generator generator(model);
  generator.add(prompt, sampling, std::move(cache));
  Generated found;
  for (;;) {
    const auto token = generator.step().at(0);
    if (!token.id) return found;
    found.ids.push_back(*token.id);
    found.logprobs.push_back(token.logprobs->chosen);
  }
}

void expect_same(const Generated& found, const Generated& expected) {
  EXPECT_EQ(found.ids, expected.ids);
  ASSERT_EQ(found.logprobs.size(), expected.logprobs.size());
  for (size_t i = 0; i < found.logprobs.size(); ++i)
    EXPECT_NEAR(found.logprobs[i], expected.logprobs[i], 1e-10) << i;
}

class CachedPrompt : public testing::TestWithParam<Config> {
 protected:
  CachedPrompt() : model_(GetParam()) {
    small::perturb(model_, 0.1, 9);
    const auto tokens = small::tokens(1, 14, GetParam().model.vocab_size, 6);
    prompt_.assign(tokens.data_ptr<int64_t>(), tokens.data_ptr<int64_t>() + tokens.numel());
  }

  Transformer model_;
  std::vector<int64_t> prompt_;
  const SamplingParams sampling_{.max_tokens = 5, .temperature = 1.5, .seed = 3};
};

// A turn generates, the next one shares `shared` tokens with it.
TEST_P(CachedPrompt, ContinuesTheCommonBeginning) {
  const auto cache = std::make_shared<KeyValueCache>();
  const auto first = run(model_, {prompt_.begin(), prompt_.begin() + 6}, sampling_, cache);
  ASSERT_EQ(first.ids.size(), 5u);
  EXPECT_EQ(cache->length, 10);  // the last token has not been computed
  std::vector<int64_t> turns(prompt_.begin(), prompt_.begin() + 6);
  turns.insert(turns.end(), first.ids.begin(), first.ids.end());
  for (const int64_t shared : {10, 8, 6, 1, 0}) {
    auto next = turns;
    next.resize(static_cast<size_t>(shared));
    next.insert(next.end(), prompt_.begin() + 6, prompt_.end());
    const auto kept = std::make_shared<KeyValueCache>(*cache);
    kept->truncate(shared);
    EXPECT_EQ(kept->length, shared);
    expect_same(run(model_, next, sampling_, kept), run(model_, next, sampling_));
    EXPECT_EQ(kept->length, std::ssize(next) + 4);
  }
}

// The shared tokens are not computed again: other values in the cache change the result.
TEST_P(CachedPrompt, ReadsTheCache) {
  const auto cache = std::make_shared<KeyValueCache>();
  const auto expected = run(model_, prompt_, sampling_, cache);
  cache->truncate(std::ssize(prompt_) - 1);
  expect_same(run(model_, prompt_, sampling_, cache), expected);
  cache->truncate(std::ssize(prompt_) - 1);
  {
    const c10::InferenceMode inference;  // as when the tensors were created
    for (const LayerCache& layer : cache->layers) layer.keys.tensor().mul_(-1);
  }
  const auto changed = run(model_, prompt_, sampling_, cache);
  EXPECT_GT(std::abs(changed.logprobs[0] - expected.logprobs[0]), 1e-3);
}

TEST_P(CachedPrompt, OfTheWholePromptIsAnError) {
  const auto cache = std::make_shared<KeyValueCache>();
  run(model_, prompt_, sampling_, cache);
  EXPECT_THROW(run(model_, prompt_, sampling_, cache), c10::Error);
}

// Sequences with and without a cache in one batch, of which two share their tokens.
TEST_P(CachedPrompt, BesideOtherSequences) {
  const auto expected = run(model_, prompt_, sampling_);
  const auto cache = std::make_shared<KeyValueCache>();
  run(model_, {prompt_.begin(), prompt_.begin() + 7}, sampling_, cache);
  cache->truncate(7);
  Generator generator(model_);
  generator.add(prompt_, sampling_);
  generator.add(prompt_, sampling_, cache);
  generator.add(prompt_, sampling_);
  std::vector<std::vector<int64_t>> ids(3);
  for (auto tokens = generator.step(); !tokens.empty(); tokens = generator.step()) {
    for (const auto& token : tokens) {
      if (token.id) ids.at(token.sequence).push_back(*token.id);
    }
  }
  for (const auto& found : ids) EXPECT_EQ(found, expected.ids);
}

INSTANTIATE_TEST_SUITE_P(Models, CachedPrompt, testing::Values(small::qwen(), small::deepseek()),
                         [](const auto& info) { return info.index == 0 ? "qwen" : "deepseek"; });

}  // namespace generator_test
}  // namespace hero
