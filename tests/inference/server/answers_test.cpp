// What answers look like: words of tokens, offsets, and pieces of a stream that make up the whole.
#include <gtest/gtest.h>

#include "inference/server/completion_response.h"
#include "inference/server/served_model.h"

namespace {

using nlohmann::json;

hero::LoggedToken token(int64_t id, double chosen, std::vector<std::pair<int64_t, double>> top) {
  return {id, hero::TokenLogprobs{chosen, std::move(top)}};
}

hero::CompletionResponse response(const hero::CompletionRequest& request,
                                  const std::vector<std::vector<int64_t>>& prompts) {
  return {request, prompts, served::tokenizer(), "name"};
}

TEST(TokenWord, OfEveryKind) {
  const auto& t = served::tokenizer();
  EXPECT_EQ(hero::token_word(t, 'a'), "a");
  EXPECT_EQ(hero::token_word(t, 258), " a");
  EXPECT_EQ(hero::token_word(t, 0xE4), "bytes:\\xe4");
  EXPECT_EQ(hero::token_word(t, 259), "<|endoftext|>");
  EXPECT_EQ(hero::token_word(t, 280), "token_id:280");
  EXPECT_EQ(hero::text_of(t, {'a', 0xE6, 0xB1, 0x89, 259, 280, 0xE6}), "a汉\uFFFD");
}

TEST(Response, WholeWithProbabilities) {
  hero::CompletionRequest request{.prompts = {std::string("汉b")}, .logprobs = 1, .echo = true};
  auto made = response(request, {{0xE6, 0xB1, 0x89, 'b'}});
  made.add({.tokens = {{0xE6, std::nullopt},
                       token(0xB1, -1, {{5, -0.5}}),
                       token(0x89, -2, {{0x89, -2}}),
                       token('b', -3, {{'c', -1}})}});
  made.add({.content = "d", .tokens = {token('d', -4, {{'d', -4}})}, .made = 1, .finish = "length"});
  const auto whole = json::parse(made.whole());
  EXPECT_EQ(whole["object"], "text_completion");
  EXPECT_EQ(whole["model"], "name");
  EXPECT_EQ(whole["usage"],
            json::parse(R"({"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5})"));
  const auto& choice = whole["choices"][0];
  EXPECT_EQ(choice["text"], "汉bd");
  EXPECT_EQ(choice["finish_reason"], "length");
  const auto& logs = choice["logprobs"];
  EXPECT_EQ(logs["tokens"], (json{"bytes:\\xe6", "bytes:\\xb1", "bytes:\\x89", "b", "d"}));
  EXPECT_EQ(logs["token_logprobs"], (json{nullptr, -1.0, -2.0, -3.0, -4.0}));
  EXPECT_EQ(logs["text_offset"], (json{0, 0, 0, 1, 2}));
  EXPECT_EQ(logs["top_logprobs"][0], nullptr);
  EXPECT_EQ(logs["top_logprobs"][3], (json{{"b", -3.0}, {"c", -1.0}}));
  EXPECT_EQ(logs["top_logprobs"][4], (json{{"d", -4.0}}));
}

// JSON has no infinity, and a greedy token's number stays the greatest of its top entries.
TEST(Response, NumbersStayNumbersAndEqual) {
  hero::CompletionRequest request{.prompts = {std::string("a")}, .logprobs = 2};
  auto made = response(request, {{'a'}});
  const double odd = -0.1234567890123456789;
  made.add({.tokens = {token('x', -INFINITY, {{'y', odd}, {'x', -INFINITY}}),
                       token('y', odd, {{'y', odd}, {'z', NAN}})},
            .finish = "stop"});
  const auto logs = json::parse(made.whole())["choices"][0]["logprobs"];
  EXPECT_EQ(logs["token_logprobs"][0], -9999.0);
  EXPECT_EQ(logs["top_logprobs"][0], (json{{"x", -9999.0}, {"y", odd}}));
  EXPECT_EQ(logs["token_logprobs"][1].get<double>(), logs["top_logprobs"][1]["y"].get<double>());
}

TEST(Response, ChunksMakeUpTheWhole) {
  hero::CompletionRequest request{.prompts = {std::string("p")}, .n = 2, .echo = true, .stream = true};
  auto made = response(request, {{'p'}});
  std::string texts[2], finish[2];
  const hero::Event events[] = {{.text = 1, .content = "b", .made = 1},
                                {.text = 0, .made = 1},
                                {.text = 0, .content = "a", .made = 1},
                                {.text = 1, .made = 1, .finish = "stop"},
                                {.text = 0, .made = 1},
                                {.text = 0, .content = "c", .made = 1, .finish = "length"}};
  int chunks = 0;
  for (const auto& event : events) {
    made.add(event);
    const auto chunk = made.chunk(event.text);
    if (chunk.empty()) continue;
    ++chunks;
    const auto choice = json::parse(chunk)["choices"][0];
    texts[choice["index"].get<size_t>()] += choice["text"];
    if (!choice["finish_reason"].is_null()) finish[choice["index"].get<size_t>()] = choice["finish_reason"];
  }
  EXPECT_EQ(texts[0], "pac");
  EXPECT_EQ(texts[1], "pb");
  EXPECT_EQ(finish[0], "length");
  EXPECT_EQ(finish[1], "stop");
  EXPECT_EQ(chunks, 5) << "nothing is sent for nothing";
  const auto last = json::parse(made.usage_chunk());
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["completion_tokens"], 6);
}

}  // namespace
