// The engine with a random fp64 model, where rounding does not change samples.
#include "inference/server/engine.h"

#include <gtest/gtest.h>

#include "inference/server/served_model.h"

namespace engine_test {

using namespace std::chrono_literals;

struct LoggedToken {
  int64_t id;
  bool has_logprob;
};

struct FinishedSequence {
  std::string text;
  std::vector<LoggedToken> tokens;
  int64_t num_generated = 0;
  std::string finish_reason;
};

std::vector<FinishedSequence> wait_until_done(hero::RequestOutput& output, size_t count) {
  std::vector<FinishedSequence> sequences(count);
  while (!output.done()) {
    for (auto& next : output.wait(100ms)) {
      auto& sequence = sequences.at(next.sequence);
      EXPECT_EQ(sequence.finish_reason, "") << "output after the finish reason";
      sequence.text += next.text;
      const auto add = [&](int64_t id, std::optional<double> logprob, auto&&...) {
        sequence.tokens.push_back({id, logprob.has_value()});
      };
      if (next.prompt) next.prompt->for_each(add);
      next.tokens.for_each(add);
      sequence.num_generated += next.num_generated;
      if (next.finish_reason) sequence.finish_reason = next.finish_reason;
    }
  }
  return sequences;
}

hero::EngineRequest make_request(const std::string& prompt, int64_t max_tokens, uint64_t seed = 1) {
  return {.prompts = {served::ids(prompt)}, .sampling = {.max_tokens = max_tokens, .seed = seed}};
}

class EngineTest : public testing::Test {
 protected:
  hero::Engine& engine(hero::Engine::Limits limits = {}) {
    engine_ = std::make_unique<hero::Engine>(served::model(), served::tokenizer(), metrics_, limits);
    return *engine_;
  }
  std::vector<FinishedSequence> run(const hero::EngineRequest& request) {
    const size_t count = request.prompts.size() * static_cast<size_t>(request.n);
    return wait_until_done(*engine_->submit(request), count);
  }
  static int status_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const hero::ApiError& e) {
      return e.status;
    }
    return 200;
  }
  // Submits a request of maximum length and waits for its first output.
  std::shared_ptr<hero::RequestOutput> start_long_request() {
    auto longest = make_request("a", 69);
    longest.stream = true;
    auto output = engine_->submit(longest);
    while (output->wait(100ms).empty()) continue;
    return output;
  }

  hero::ServeMetrics metrics_;
  std::unique_ptr<hero::Engine> engine_;
};

TEST_F(EngineTest, MatchesGenerate) {
  engine();
  const auto found = run(make_request("hello", 20, 7))[0];
  hero::Utf8StreamDecoder decoder;
  std::string expected;
  hero::generate(served::model(), served::ids("hello"), {.max_tokens = 20, .seed = 7}, [&](int64_t id) {
    if (id < 260) expected += decoder.add(served::tokenizer().bytes(static_cast<int32_t>(id)));
  });
  EXPECT_EQ(found.text, expected + decoder.flush());
  EXPECT_EQ(found.num_generated, 20);
  EXPECT_EQ(found.finish_reason, "length");
}

TEST_F(EngineTest, OutputDoesNotDependOnTheBatch) {
  engine({.max_batch = 5});
  std::vector<FinishedSequence> alone;
  for (uint64_t i = 0; i < 24; ++i) alone.push_back(run(make_request(std::string(1 + i, 'x'), 20, i))[0]);
  std::vector<std::shared_ptr<hero::RequestOutput>> outputs;
  for (uint64_t i = 0; i < 24; ++i)
    outputs.push_back(engine_->submit(make_request(std::string(1 + i, 'x'), 20, i)));
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(wait_until_done(*outputs[i], 1)[0].text, alone[i].text);
}

TEST_F(EngineTest, SeveralPromptsAndCompletions) {
  engine();
  hero::EngineRequest both{.prompts = {served::ids("one"), served::ids("another")}, .n = 3};
  both.sampling = {.max_tokens = 15, .seed = 40};
  const auto found = run(both);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(found[i].text, run(make_request(i < 3 ? "one" : "another", 15, 40 + i % 3))[0].text);
  }
  EXPECT_NE(found[0].text, found[1].text);
}

TEST_F(EngineTest, EndTokensAndStopStrings) {
  engine();
  auto request = make_request("hello", 40, 7);
  const std::string full_text = run(request)[0].text;
  const std::string stop = full_text.substr(full_text.size() / 2, 3);
  request.stop = {stop};
  auto found = run(request)[0];
  EXPECT_EQ(found.text, full_text.substr(0, full_text.find(stop)));
  EXPECT_EQ(found.finish_reason, "stop");
  EXPECT_LT(found.num_generated, 40);

  request = make_request("hello", 40, 7);
  request.sampling.logprobs = 0;
  const auto tokens = run(request)[0].tokens;
  request.sampling.eos = {tokens[5].id};
  found = run(request)[0];
  EXPECT_EQ(found.finish_reason, "stop");
  ASSERT_LE(found.tokens.size(), 6u);
  EXPECT_EQ(found.tokens.back().id, tokens[5].id) << "the eos is included";
  EXPECT_EQ(found.num_generated, std::ssize(found.tokens));
}

TEST_F(EngineTest, EndsAtTheLastPosition) {
  engine();
  const auto found = run(make_request("hello", 1000))[0];
  EXPECT_EQ(found.num_generated, 70 - std::ssize(served::ids("hello")));
  EXPECT_EQ(found.finish_reason, "length");
}

TEST_F(EngineTest, ScoredPrompts) {
  engine();
  const auto prompt = served::ids("hello world");
  hero::EngineRequest scored{.prompts = {prompt, {5}}, .n = 2, .score_prompts = true};
  for (const int64_t max_tokens : {0, 1, 8}) {
    scored.sampling = {.max_tokens = max_tokens, .seed = 3, .logprobs = 1};
    const auto found = run(scored);
    for (size_t i = 0; i < 4; ++i) {
      ASSERT_EQ(std::ssize(found[i].tokens), std::ssize(scored.prompts[i / 2]) + max_tokens);
      EXPECT_FALSE(found[i].tokens[0].has_logprob);
      for (size_t t = 1; t < found[i].tokens.size(); ++t) ASSERT_TRUE(found[i].tokens[t].has_logprob);
      EXPECT_EQ(found[i].num_generated, max_tokens);
      EXPECT_EQ(found[i].finish_reason, "length");
    }
    EXPECT_EQ(found[1].tokens[3].id, prompt[3]);
    if (max_tokens == 0) continue;
    const auto unscored = run(make_request("hello world", max_tokens, 4))[0];
    EXPECT_EQ(found[1].text, unscored.text) << "the seed of the second completion is 3 + 1";
  }
}

TEST_F(EngineTest, EosDirectlyAfterAScoredPrompt) {
  engine();
  auto scored = make_request("hello", 1);
  scored.score_prompts = true;
  scored.sampling.logprobs = 1;
  scored.sampling.temperature = 0;
  const auto last = run(scored)[0].tokens.back().id;
  scored.sampling.eos = {last};
  const auto found = run(scored)[0];
  EXPECT_EQ(found.finish_reason, "stop");
  EXPECT_EQ(found.text, "");
  EXPECT_EQ(found.tokens.size(), served::ids("hello").size() + 1);
}

// A short request does not wait for an earlier request with 200 prompts on two batch slots.
TEST_F(EngineTest, RequestsAreScheduledRoundRobin) {
  engine({.max_batch = 2});
  hero::EngineRequest many{.prompts = std::vector<std::vector<int64_t>>(200, served::ids("x"))};
  many.sampling.max_tokens = 20;
  for (const bool scoring : {false, true}) {
    many.score_prompts = scoring;
    if (scoring) many.sampling.logprobs = 0;
    const auto big = engine_->submit(many);
    run(make_request("short", 3));
    EXPECT_FALSE(big->done());
    EXPECT_THROW(
        {
          engine_->stop();
          wait_until_done(*big, 200);
        },
        hero::ApiError);
    engine({.max_batch = 2});
  }
}

TEST_F(EngineTest, RejectsWhenQueueIsFull) {
  engine({.max_batch = 1, .max_queue = 2});
  const auto running = start_long_request();
  const auto second = engine_->submit(make_request("b", 2)), third = engine_->submit(make_request("c", 2));
  EXPECT_EQ(status_of([&] { engine_->submit(make_request("d", 2)); }), 503);
  running->cancel();
  EXPECT_EQ(wait_until_done(*second, 1)[0].num_generated, 2);
  EXPECT_EQ(wait_until_done(*third, 1)[0].num_generated, 2);
  EXPECT_EQ(run(make_request("d", 2))[0].num_generated, 2);
}

TEST_F(EngineTest, CancelledRequestFreesItsSlot) {
  engine({.max_batch = 1});
  start_long_request()->cancel();
  EXPECT_EQ(run(make_request("b", 2))[0].num_generated, 2);
  EXPECT_NE(metrics_.text().find("hero_cancelled_requests_total 1\n"), std::string::npos);
}

TEST_F(EngineTest, Deadlines) {
  engine({.max_batch = 1});
  auto late = make_request("a", 60);
  late.deadline = hero::Clock::now();
  const auto output = engine_->submit(late);
  EXPECT_EQ(status_of([&] { wait_until_done(*output, 1); }), 504);
  EXPECT_EQ(run(make_request("b", 2))[0].num_generated, 2);
}

TEST_F(EngineTest, StopFailsUnfinishedRequests) {
  engine();
  const auto output = start_long_request();
  engine_->stop();
  EXPECT_EQ(status_of([&] { wait_until_done(*output, 1); }), 503);
  EXPECT_EQ(status_of([&] { engine_->submit(make_request("a", 1)); }), 503);
}

// An invalid token id makes the forward pass fail: its requests fail, later requests succeed.
TEST_F(EngineTest, RecoversFromAFailedForwardPass) {
  engine();
  hero::EngineRequest bad{.prompts = {{1'000'000}}};
  bad.score_prompts = true;
  bad.sampling.logprobs = 0;
  EXPECT_EQ(status_of([&] { wait_until_done(*engine_->submit(bad), 1); }), 500);
  EXPECT_EQ(run(make_request("b", 2))[0].num_generated, 2);
}

TEST_F(EngineTest, Metrics) {
  engine();
  hero::EngineRequest two{.prompts = {served::ids("hello")}, .n = 2};
  two.sampling.max_tokens = 4;
  run(two);
  const auto text = metrics_.text();
  for (const char* const line :
       {"hero_prompt_tokens_total 5\n", "hero_generated_tokens_total 8\n",
        "hero_time_to_first_token_seconds_count 1\n", "hero_time_per_token_seconds_count 6\n",
        "hero_batch_size_sum 8\n", "hero_batch_size_count 4\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

}  // namespace engine_test
