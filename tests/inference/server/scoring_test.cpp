// Logprobs of prompts and generated tokens against log_softmax of one forward pass (fp64, 1e-10).
#include "inference/server/scoring.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "inference/server/served_model.h"

namespace scoring_test {

constexpr double kTolerance = 1e-10;

// Log-probabilities [S, V] of one sequence.
at::Tensor log_softmax(const std::vector<int64_t>& ids) {
  at::NoGradGuard no_grad;
  const auto& model = served::model();
  const auto hidden = model.forward(at::tensor(ids, at::kLong).unsqueeze(0)).hidden_TD;
  return model.logits(hidden, 1)[0].log_softmax(1);
}

void expect_row(const hero::TokenLogprobs& found, int64_t id, const at::Tensor& logs_V, int64_t top) {
  EXPECT_NEAR(found.chosen, logs_V[id].item<double>(), kTolerance);
  const auto [values, indices] = logs_V.topk(top);
  ASSERT_EQ(std::ssize(found.top), top);
  for (int64_t i = 0; i < top; ++i) {
    EXPECT_EQ(found.top[i].first, indices[i].item<int64_t>());
    EXPECT_NEAR(found.top[i].second, values[i].item<double>(), kTolerance);
  }
  if (top > 0 && found.top[0].first == id) {
    EXPECT_EQ(found.chosen, found.top[0].second);
  }
}

TEST(Scoring, BatchOfDifferentLengths) {
  const std::vector<std::vector<int64_t>> prompts = {
      served::ids("hello world"), {7}, served::ids("abcabc \n")};
  const std::vector<int64_t> top = {3, 1, 0};
  const auto scored = hero::score_prompts(served::model(), {prompts.begin(), prompts.end()}, top);
  ASSERT_EQ(scored.size(), 3u);
  for (size_t p = 0; p < prompts.size(); ++p) {
    const auto logs = log_softmax(prompts[p]);
    ASSERT_EQ(scored[p].tokens.size() + 1, prompts[p].size());
    for (size_t i = 1; i < prompts[p].size(); ++i) {
      expect_row(scored[p].tokens[i - 1], prompts[p][i], logs[static_cast<int64_t>(i) - 1], top[p]);
    }
    EXPECT_LT((scored[p].next_V.log_softmax(0) - logs[-1]).abs().max().item<double>(), kTolerance);
  }
}

TEST(Scoring, GreedyTokenEqualsTopEntryExactly) {
  auto ids = served::ids("ab");
  for (int i = 0; i < 20; ++i) ids.push_back(log_softmax(ids)[-1].argmax().item<int64_t>());
  const auto scored = hero::score_prompts(served::model(), {ids}, {1})[0].tokens;
  for (size_t i = served::ids("ab").size(); i < ids.size(); ++i) {
    EXPECT_EQ(scored[i - 1].chosen, scored[i - 1].top[0].second);
  }
}

TEST(Generator, LogprobsOfGeneratedTokens) {
  hero::Generator generator(served::model());
  const auto prompt = served::ids("hello");
  generator.add(prompt, {.max_tokens = 10, .seed = 3, .logprobs = 2});
  auto ids = prompt;
  for (auto tokens = generator.step(); !tokens.empty(); tokens = generator.step()) {
    if (!tokens[0].sampled) continue;
    ASSERT_TRUE(tokens[0].logprobs);
    expect_row(*tokens[0].logprobs, *tokens[0].sampled, log_softmax(ids)[-1], 2);
    ids.push_back(*tokens[0].sampled);
  }
  EXPECT_EQ(ids.size(), prompt.size() + 10);
}

TEST(Generator, EosIsSampledButNotReturned) {
  const auto prompt = served::ids("hello");
  const int64_t greedy = log_softmax(prompt)[-1].argmax().item<int64_t>();
  hero::Generator generator(served::model());
  generator.add(prompt, {.temperature = 0, .eos = {greedy}, .logprobs = 1});
  const auto tokens = generator.step();
  ASSERT_EQ(tokens.size(), 1u);
  EXPECT_FALSE(tokens[0].id);
  EXPECT_EQ(tokens[0].sampled, greedy);
  EXPECT_EQ(tokens[0].logprobs->chosen, tokens[0].logprobs->top[0].second);
  EXPECT_TRUE(generator.step().empty());
}

TEST(Generator, RemovingSequencesDoesNotAffectOthers) {
  const auto generate = [](bool with_others) {
    hero::Generator generator(served::model());
    std::vector<int64_t> ids;
    size_t mine = 0;
    for (int step = 0; step < 12; ++step) {
      if (with_others && step == 0) generator.add(served::ids("one"), {.seed = 4});
      if (step == 0) mine = generator.add(served::ids("mine"), {.max_tokens = 12, .seed = 5});
      if (with_others && step == 3) generator.add(served::ids("more"), {.seed = 6});
      if (step == 5) generator.remove(mine + 1);
      if (with_others && step == 7) generator.remove(0);
      for (const auto& token : generator.step()) {
        EXPECT_FALSE(step >= 5 && token.sequence == mine + 1);
        EXPECT_FALSE(step >= 7 && token.sequence < mine);
        if (token.sequence == mine) ids.push_back(token.id.value_or(-1));
      }
    }
    generator.remove(77);
    return ids;
  };
  const auto alone = generate(false);
  EXPECT_EQ(alone.size(), 12u);
  EXPECT_EQ(generate(true), alone);
}

}  // namespace scoring_test
