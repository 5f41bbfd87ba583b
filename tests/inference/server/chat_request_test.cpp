#include "inference/server/chat_request.h"

#include <gtest/gtest.h>

namespace chat_request_test {

using nlohmann::json;

const json kMessage = {{"role", "user"}, {"content", "hi"}};

hero::ChatRequest parsed(const json& body) { return hero::parse_chat_request(body, {}); }

json with(const std::string& field, const json& value) {
  json body = {{"messages", json::array({kMessage})}};
  body[field] = value;
  return body;
}

// The error message, after checking status 400 and the field.
std::string error_message(const json& body, const std::string& field) {
  try {
    parsed(body);
  } catch (const hero::ApiError& e) {
    EXPECT_EQ(e.status, 400);
    EXPECT_EQ(e.param, field);
    return e.what();
  }
  ADD_FAILURE() << "accepted " << body;
  return "";
}

TEST(ChatRequest, Defaults) {
  const auto request = parsed(with("user", "ada"));
  EXPECT_EQ(request.messages, json::array({kMessage}));
  EXPECT_EQ(request.message_bytes, 6);
  const auto& completion = request.completion;
  EXPECT_FALSE(completion.max_tokens || completion.seed || completion.stream || completion.ignore_eos);
  EXPECT_EQ(completion.temperature, 1);
  EXPECT_EQ(completion.n, 1);
  EXPECT_EQ(completion.logprobs, -1);
  EXPECT_TRUE(completion.prompts.empty());
}

TEST(ChatRequest, Messages) {
  const auto messages = parsed({{"messages", json::parse(R"([
      {"role": "system", "content": "s", "refusal": null},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ada"},
      {"role": "tool", "content": "t", "tool_call_id": "7"}])")}})
                            .messages;
  EXPECT_EQ(messages, json::parse(R"([{"role": "system", "content": "s"},
      {"role": "user", "content": "a\nb", "name": "ada"},
      {"role": "tool", "content": "t", "tool_call_id": "7"}])"));
}

TEST(ChatRequest, InvalidMessages) {
  const auto one = [](const json& message) { return json{{"messages", json::array({message})}}; };
  for (const json& value : {json(), json(1), json("a"), json::array()})
    error_message({{"messages", value}}, "messages");
  error_message(one(1), "messages[0]");
  error_message(one({{"content", "a"}}), "messages[0].role");
  error_message(one({{"role", 1}, {"content", "a"}}), "messages[0].role");
  error_message(one({{"role", "User"}, {"content", "a"}}), "messages[0].role");
  for (const json& value : {json(), json(1), json::array(), json::object()})
    error_message(one({{"role", "user"}, {"content", value}}), "messages[0].content");
  const auto part = [&](const json& value) {
    return one({{"role", "user"}, {"content", json::array({value})}});
  };
  error_message(part("a"), "messages[0].content[0]");
  error_message(part({{"text", "a"}}), "messages[0].content[0].type");
  EXPECT_NE(error_message(part({{"type", "image_url"}}), "messages[0].content[0].type").find("image_url"),
            std::string::npos);
  error_message(part({{"type", "text"}}), "messages[0].content[0].text");
  error_message(one({{"role", "user"}, {"content", "a"}, {"tool_calls", json::array()}}),
                "messages[0].tool_calls");
  error_message(one({{"role", "user"}, {"content", "a"}, {"name", 1}}), "messages[0].name");
}

TEST(ChatRequest, LengthAndLogprobs) {
  EXPECT_EQ(parsed(with("max_tokens", 5)).completion.max_tokens, 5);
  EXPECT_EQ(parsed(with("max_completion_tokens", 6)).completion.max_tokens, 6);
  error_message(with("max_completion_tokens", 0), "max_completion_tokens");
  auto both = with("max_tokens", 5);
  both["max_completion_tokens"] = 5;
  EXPECT_EQ(parsed(both).completion.max_tokens, 5);
  both["max_completion_tokens"] = 6;
  error_message(both, "max_completion_tokens");
  EXPECT_EQ(parsed(with("logprobs", true)).completion.logprobs, 0);
  EXPECT_EQ(parsed(with("logprobs", false)).completion.logprobs, -1);
  auto top = with("logprobs", true);
  top["top_logprobs"] = 20;
  EXPECT_EQ(parsed(top).completion.logprobs, 20);
  top["logprobs"] = false;
  error_message(top, "top_logprobs");
  error_message(with("logprobs", 1), "logprobs");
}

TEST(ChatRequest, SharesTheFieldsOfCompletions) {
  EXPECT_EQ(parsed(with("stop", {"a", "b"})).completion.stop.size(), 2u);
  EXPECT_EQ(parsed(with("seed", -1)).completion.seed, ~uint64_t{0});
  EXPECT_EQ(parsed(with("n", 3)).completion.n, 3);
  EXPECT_TRUE(parsed(with("ignore_eos", true)).completion.ignore_eos);
  for (const char* const field : {"presence_penalty", "frequency_penalty"}) {
    parsed(with(field, 0));
    error_message(with(field, 1), field);
  }
  error_message(with("logit_bias", {{"1", 2}}), "logit_bias");
  EXPECT_NE(error_message(with("max_token", 1), "max_token").find("did you mean max_tokens?"),
            std::string::npos);
  for (const char* const field : {"prompt", "echo", "best_of", "suffix", "tools", "response_format"})
    error_message(with(field, "x"), field);
}

}  // namespace chat_request_test
