// Completion objects: token strings, text offsets, and streamed chunks that add up to the complete response.
#include "inference/server/completion_response.h"

#include <gtest/gtest.h>

#include "inference/server/served_model.h"

namespace completion_response_test {

using nlohmann::json;

hero::TokenWithLogprobs token(int64_t id, double chosen, std::vector<std::pair<int64_t, double>> top) {
  return {id, hero::TokenLogprobs{chosen, std::move(top)}};
}

hero::CompletionResponse response(const hero::CompletionRequest& request,
                                  const std::vector<std::vector<int64_t>>& prompts) {
  return {request, prompts, served::tokenizer(), "name"};
}

TEST(TokenString, AllKinds) {
  const auto& t = served::tokenizer();
  EXPECT_EQ(hero::token_string(t, 'a'), "a");
  EXPECT_EQ(hero::token_string(t, 258), " a");
  EXPECT_EQ(hero::token_string(t, 0xE4), "bytes:\\xe4");
  EXPECT_EQ(hero::token_string(t, 259), "<|endoftext|>");
  EXPECT_EQ(hero::token_string(t, 280), "token_id:280");
  EXPECT_EQ(hero::decode_text(t, {'a', 0xE6, 0xB1, 0x89, 259, 280, 0xE6}), "a汉\uFFFD");
}

TEST(Response, CompleteWithLogprobs) {
  hero::CompletionRequest request{.prompts = {std::string("汉b")}, .logprobs = 1, .echo = true};
  auto completion = response(request, {{0xE6, 0xB1, 0x89, 'b'}});
  completion.add({.tokens = {{0xE6, std::nullopt},
                             token(0xB1, -1, {{5, -0.5}}),
                             token(0x89, -2, {{0x89, -2}}),
                             token('b', -3, {{'c', -1}})}});
  completion.add(
      {.text = "d", .tokens = {token('d', -4, {{'d', -4}})}, .num_generated = 1, .finish_reason = "length"});
  const auto complete = json::parse(completion.complete());
  EXPECT_EQ(complete["object"], "text_completion");
  EXPECT_EQ(complete["model"], "name");
  EXPECT_EQ(complete["usage"],
            json::parse(R"({"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5})"));
  const auto& choice = complete["choices"][0];
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

// JSON has no infinity. The logprob of a greedy token equals its first entry in top_logprobs exactly.
TEST(Response, LogprobsAreFiniteAndConsistent) {
  hero::CompletionRequest request{.prompts = {std::string("a")}, .logprobs = 2};
  auto completion = response(request, {{'a'}});
  const double logprob = -0.1234567890123456789;
  completion.add({.tokens = {token('x', -INFINITY, {{'y', logprob}, {'x', -INFINITY}}),
                             token('y', logprob, {{'y', logprob}, {'z', NAN}})},
                  .finish_reason = "stop"});
  const auto logs = json::parse(completion.complete())["choices"][0]["logprobs"];
  EXPECT_EQ(logs["token_logprobs"][0], -9999.0);
  EXPECT_EQ(logs["top_logprobs"][0], (json{{"x", -9999.0}, {"y", logprob}}));
  EXPECT_EQ(logs["token_logprobs"][1].get<double>(), logs["top_logprobs"][1]["y"].get<double>());
}

TEST(Response, ChunksAddUpToTheCompleteText) {
  hero::CompletionRequest request{.prompts = {std::string("p")}, .n = 2, .echo = true, .stream = true};
  auto completion = response(request, {{'p'}});
  std::string texts[2], finish_reasons[2];
  const hero::SequenceOutput outputs[] = {
      {.sequence = 1, .text = "b", .num_generated = 1},
      {.sequence = 0, .num_generated = 1},
      {.sequence = 0, .text = "a", .num_generated = 1},
      {.sequence = 1, .num_generated = 1, .finish_reason = "stop"},
      {.sequence = 0, .num_generated = 1},
      {.sequence = 0, .text = "c", .num_generated = 1, .finish_reason = "length"}};
  int chunks = 0;
  for (const auto& output : outputs) {
    completion.add(output);
    const auto chunk = completion.chunk(output.sequence);
    if (chunk.empty()) continue;
    ++chunks;
    const auto choice = json::parse(chunk)["choices"][0];
    texts[choice["index"].get<size_t>()] += choice["text"];
    if (!choice["finish_reason"].is_null())
      finish_reasons[choice["index"].get<size_t>()] = choice["finish_reason"];
  }
  EXPECT_EQ(texts[0], "pac");
  EXPECT_EQ(texts[1], "pb");
  EXPECT_EQ(finish_reasons[0], "length");
  EXPECT_EQ(finish_reasons[1], "stop");
  EXPECT_EQ(chunks, 5) << "no chunk without new output";
  const auto last = json::parse(completion.usage_chunk());
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["completion_tokens"], 6);
}

}  // namespace completion_response_test
