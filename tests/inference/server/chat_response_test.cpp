// Chat completion objects, and chunks that add up to them; the estimated size of a response.
#include "inference/server/chat_response.h"

#include <gtest/gtest.h>

#include "inference/server/budget.h"
#include "inference/server/served_model.h"

namespace chat_response_test {

using nlohmann::json;

hero::ChatResponse response(int64_t n, int64_t logprobs = -1, bool include_usage = false) {
  const hero::CompletionRequest request{.n = n, .logprobs = logprobs, .include_usage = include_usage};
  return {request, {{1, 2, 3}}, served::tokenizer(), "name"};
}

std::string complete_text(hero::ChatResponse& chat) {
  std::string text;
  EXPECT_TRUE(chat.write([&](std::string_view part) {
    text += part;
    return true;
  }));
  return text;
}

hero::LoggedTokens tokens(const std::vector<std::pair<int64_t, hero::TokenLogprobs>>& logged) {
  hero::LoggedTokens found;
  for (const auto& [id, logprobs] : logged) found.add(id, logprobs);
  return found;
}

TEST(ChatResponse, Complete) {
  auto chat = response(2);
  chat.add({.sequence = 0, .text = "a", .num_generated = 1});
  chat.add({.sequence = 1, .text = "汉", .num_generated = 2, .finish_reason = "stop"});
  chat.add({.sequence = 0, .text = "b", .num_generated = 1, .finish_reason = "length"});
  const auto complete = json::parse(complete_text(chat));
  EXPECT_EQ(complete["object"], "chat.completion");
  EXPECT_EQ(complete["id"].get<std::string>().substr(0, 9), "chatcmpl-");
  EXPECT_EQ(complete["choices"], json::parse(R"([
      {"index": 0, "message": {"role": "assistant", "content": "ab"}, "logprobs": null, "finish_reason": "length"},
      {"index": 1, "message": {"role": "assistant", "content": "汉"}, "logprobs": null, "finish_reason": "stop"}])"));
  EXPECT_EQ(complete["usage"],
            json::parse(R"({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7})"));
}

TEST(ChatResponse, Chunks) {
  auto chat = response(1, -1, true);
  const auto next = [&](hero::SequenceOutput output) {
    chat.add(std::move(output));
    const auto chunk = chat.chunk(0);
    return chunk.empty() ? json() : json::parse(chunk);
  };
  EXPECT_EQ(next({.num_generated = 1}), json());  // no complete character yet
  const auto first = next({.text = "a", .num_generated = 1});
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["usage"], nullptr);
  EXPECT_EQ(first["choices"][0]["delta"], (json{{"role", "assistant"}, {"content", "a"}}));
  EXPECT_EQ(first["choices"][0]["finish_reason"], nullptr);
  const auto last = next({.num_generated = 1, .finish_reason = "stop"});
  EXPECT_EQ(last["choices"][0]["delta"], json::object());
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
  const auto usage = json::parse(chat.usage_chunk());
  EXPECT_EQ(usage["choices"], json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 3);
}

TEST(ChatResponse, Logprobs) {
  auto chat = response(1, 2);
  chat.add({.text = "a",
            .tokens = tokens({{'a', {-0.5, {{'a', -0.5}, {259, -1}}}}, {0xE6, {-2, {{280, -INFINITY}}}}}),
            .num_generated = 2,
            .finish_reason = "length"});
  const auto logprobs = json::parse(complete_text(chat))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs, json::parse(R"({"content": [
      {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [
          {"token": "a", "logprob": -0.5, "bytes": [97]},
          {"token": "<|endoftext|>", "logprob": -1.0, "bytes": null}]},
      {"token": "bytes:\\xe6", "logprob": -2.0, "bytes": [230], "top_logprobs": [
          {"token": "token_id:280", "logprob": -9999.0, "bytes": null}]}]})"));
}

TEST(ChatResponse, EstimatedSize) {
  for (const bool stream : {false, true}) {
    const hero::CompletionRequest request{.n = 3, .logprobs = 20, .stream = stream};
    hero::ChatResponse chat(request, {{1}}, served::tokenizer(), "name");
    hero::TokenLogprobs logprobs{-1.2345678901234567e-5, {}};
    for (int64_t id = 0; id < 20; ++id) logprobs.top.emplace_back(' ' + id, -1.2345678901234567e-5);
    size_t size = 0;
    for (size_t sequence = 0; sequence < 3; ++sequence) {
      for (int i = 0; i < 100; ++i) {
        chat.add({.sequence = sequence,
                  .text = "    ",
                  .tokens = tokens({{258, logprobs}}),
                  .num_generated = 1,
                  .finish_reason = i == 99 ? "length" : nullptr});
        if (stream) size += chat.chunk(sequence).size();
      }
    }
    if (!stream) size = complete_text(chat).size();
    const auto cost = hero::chat_cost(request, 1, 100);
    EXPECT_EQ(cost.tokens, 301);
    EXPECT_GE(cost.bytes, static_cast<int64_t>(size));
    EXPECT_LE(cost.bytes, static_cast<int64_t>(2 * size));
  }
}

}  // namespace chat_response_test
