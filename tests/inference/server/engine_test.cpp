// The engine over a random model in fp64, where rounding changes no draw.
#include "inference/server/engine.h"

#include <gtest/gtest.h>

#include "inference/server/served_model.h"

namespace {

using namespace std::chrono_literals;

struct TextFound {
  std::string content;
  std::vector<hero::LoggedToken> tokens;
  int64_t made = 0;
  std::string finish;
};

std::vector<TextFound> finished(hero::Answer& answer, size_t texts) {
  std::vector<TextFound> found(texts);
  while (!answer.done()) {
    for (auto& event : answer.wait(100ms)) {
      auto& text = found.at(event.text);
      EXPECT_EQ(text.finish, "") << "an event after the last";
      text.content += event.content;
      text.tokens.insert(text.tokens.end(), event.tokens.begin(), event.tokens.end());
      text.made += event.made;
      if (event.finish) text.finish = event.finish;
    }
  }
  return found;
}

hero::Task task(const std::string& prompt, int64_t max_tokens, uint64_t seed = 1) {
  return {.prompts = {served::ids(prompt)}, .sampling = {.max_tokens = max_tokens, .seed = seed}};
}

class EngineTest : public testing::Test {
 protected:
  hero::Engine& engine(hero::Engine::Limits limits = {}) {
    engine_ = std::make_unique<hero::Engine>(served::model(), served::tokenizer(), metrics_, limits);
    return *engine_;
  }
  std::vector<TextFound> run(const hero::Task& task) {
    return finished(*engine_->submit(task), task.prompts.size() * static_cast<size_t>(task.n));
  }
  static int status_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const hero::ApiError& e) {
      return e.status;
    }
    return 200;
  }
  // A task that goes on for as long as the positions allow, and has begun.
  std::shared_ptr<hero::Answer> begun() {
    auto longest = task("a", 69);
    longest.stream = true;
    auto answer = engine_->submit(longest);
    while (answer->wait(100ms).empty()) continue;
    return answer;
  }

  hero::ServeMetrics metrics_;
  std::unique_ptr<hero::Engine> engine_;
};

TEST_F(EngineTest, MakesTheGeneratorsText) {
  engine();
  const auto found = run(task("hello", 20, 7))[0];
  hero::CharacterJoiner joiner;
  std::string expected;
  hero::generate(served::model(), served::ids("hello"), {.max_tokens = 20, .seed = 7}, [&](int64_t id) {
    if (id < 260) expected += joiner.add(served::tokenizer().bytes(static_cast<int32_t>(id)));
  });
  EXPECT_EQ(found.content, expected + joiner.finish());
  EXPECT_EQ(found.made, 20);
  EXPECT_EQ(found.finish, "length");
}

TEST_F(EngineTest, ATextIsTheSameWhateverRunsBesideIt) {
  engine({.max_batch = 5});
  std::vector<TextFound> alone;
  for (uint64_t i = 0; i < 24; ++i) alone.push_back(run(task(std::string(1 + i, 'x'), 20, i))[0]);
  std::vector<std::shared_ptr<hero::Answer>> answers;
  for (uint64_t i = 0; i < 24; ++i) answers.push_back(engine_->submit(task(std::string(1 + i, 'x'), 20, i)));
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(finished(*answers[i], 1)[0].content, alone[i].content);
}

TEST_F(EngineTest, SeveralPromptsAndTexts) {
  engine();
  hero::Task both{.prompts = {served::ids("one"), served::ids("another")}, .n = 3};
  both.sampling = {.max_tokens = 15, .seed = 40};
  const auto found = run(both);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(found[i].content, run(task(i < 3 ? "one" : "another", 15, 40 + i % 3))[0].content);
  }
  EXPECT_NE(found[0].content, found[1].content);
}

TEST_F(EngineTest, EndTokensAndStopStrings) {
  engine();
  auto one = task("hello", 40, 7);
  const std::string whole = run(one)[0].content;
  const std::string stop = whole.substr(whole.size() / 2, 3);
  one.stop = {stop};
  auto found = run(one)[0];
  EXPECT_EQ(found.content, whole.substr(0, whole.find(stop)));
  EXPECT_EQ(found.finish, "stop");
  EXPECT_LT(found.made, 40);

  one = task("hello", 40, 7);
  one.sampling.logprobs = 0;
  const auto logged = run(one)[0].tokens;
  one.sampling.eos = {logged[5].id};
  found = run(one)[0];
  EXPECT_EQ(found.finish, "stop");
  ASSERT_LE(found.tokens.size(), 6u);
  EXPECT_EQ(found.tokens.back().id, logged[5].id) << "the end token counts";
  EXPECT_EQ(found.made, std::ssize(found.tokens));
}

TEST_F(EngineTest, EndsWhereThePositionsEnd) {
  engine();
  const auto found = run(task("hello", 1000))[0];
  EXPECT_EQ(found.made, 70 - std::ssize(served::ids("hello")));
  EXPECT_EQ(found.finish, "length");
}

TEST_F(EngineTest, ScoredPrompts) {
  engine();
  const auto prompt = served::ids("hello world");
  hero::Task scored{.prompts = {prompt, {5}}, .n = 2, .score_prompts = true};
  for (const int64_t made : {0, 1, 8}) {
    scored.sampling = {.max_tokens = made, .seed = 3, .logprobs = 1};
    const auto found = run(scored);
    for (size_t i = 0; i < 4; ++i) {
      ASSERT_EQ(std::ssize(found[i].tokens), std::ssize(scored.prompts[i / 2]) + made);
      EXPECT_FALSE(found[i].tokens[0].logprobs);
      for (size_t t = 1; t < found[i].tokens.size(); ++t) ASSERT_TRUE(found[i].tokens[t].logprobs);
      EXPECT_EQ(found[i].made, made);
      EXPECT_EQ(found[i].finish, "length");
    }
    EXPECT_EQ(found[1].tokens[3].id, prompt[3]);
    if (made == 0) continue;
    const auto plain = run(task("hello world", made, 4))[0];
    EXPECT_EQ(found[1].content, plain.content) << "the second text's seed is 3 + 1";
  }
}

TEST_F(EngineTest, TheTokenAfterAScoredPromptMayEndTheText) {
  engine();
  auto scored = task("hello", 1);
  scored.score_prompts = true;
  scored.sampling.logprobs = 1;
  scored.sampling.temperature = 0;
  const auto last = run(scored)[0].tokens.back().id;
  scored.sampling.eos = {last};
  const auto found = run(scored)[0];
  EXPECT_EQ(found.finish, "stop");
  EXPECT_EQ(found.content, "");
  EXPECT_EQ(found.tokens.size(), served::ids("hello").size() + 1);
}

// 200 texts of one request on two places, and then a short one: it does not wait for them.
TEST_F(EngineTest, RequestsTakeTurns) {
  engine({.max_batch = 2});
  hero::Task many{.prompts = std::vector<std::vector<int64_t>>(200, served::ids("x"))};
  many.sampling.max_tokens = 20;
  for (const bool scoring : {false, true}) {
    many.score_prompts = scoring;
    if (scoring) many.sampling.logprobs = 0;
    const auto big = engine_->submit(many);
    run(task("short", 3));
    EXPECT_FALSE(big->done());
    EXPECT_THROW(
        {
          engine_->stop();
          finished(*big, 200);
        },
        hero::ApiError);
    engine({.max_batch = 2});
  }
}

TEST_F(EngineTest, AFullQueueRefuses) {
  engine({.max_batch = 1, .max_queue = 2});
  const auto running = begun();
  const auto second = engine_->submit(task("b", 2)), third = engine_->submit(task("c", 2));
  EXPECT_EQ(status_of([&] { engine_->submit(task("d", 2)); }), 503);
  running->cancel();
  EXPECT_EQ(finished(*second, 1)[0].made, 2);
  EXPECT_EQ(finished(*third, 1)[0].made, 2);
  EXPECT_EQ(run(task("d", 2))[0].made, 2);
}

TEST_F(EngineTest, ACancelledTaskLeaves) {
  engine({.max_batch = 1});
  begun()->cancel();
  EXPECT_EQ(run(task("b", 2))[0].made, 2);
  EXPECT_NE(metrics_.text().find("hero_cancelled_requests_total 1\n"), std::string::npos);
}

TEST_F(EngineTest, Deadlines) {
  engine({.max_batch = 1});
  auto late = task("a", 60);
  late.deadline = hero::Clock::now();
  const auto answer = engine_->submit(late);
  EXPECT_EQ(status_of([&] { finished(*answer, 1); }), 504);
  EXPECT_EQ(run(task("b", 2))[0].made, 2);
}

TEST_F(EngineTest, StoppingFailsWhatIsUnfinished) {
  engine();
  const auto answer = begun();
  engine_->stop();
  EXPECT_EQ(status_of([&] { finished(*answer, 1); }), 503);
  EXPECT_EQ(status_of([&] { engine_->submit(task("a", 1)); }), 503);
}

// Ids that the model refuses make the pass fail: those in it get an error, later ones their texts.
TEST_F(EngineTest, SurvivesAFailingPass) {
  engine();
  hero::Task bad{.prompts = {{1'000'000}}};
  bad.score_prompts = true;
  bad.sampling.logprobs = 0;
  EXPECT_EQ(status_of([&] { finished(*engine_->submit(bad), 1); }), 500);
  EXPECT_EQ(run(task("b", 2))[0].made, 2);
}

TEST_F(EngineTest, Counts) {
  engine();
  hero::Task two{.prompts = {served::ids("hello")}, .n = 2};
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

}  // namespace
