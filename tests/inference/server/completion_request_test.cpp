#include "inference/server/completion_request.h"

#include <gtest/gtest.h>

namespace completion_request_test {

using nlohmann::json;

hero::CompletionRequest parsed(const json& body) { return hero::parse_completion_request(body, {}); }

// The error message, after checking status 400 and the field.
std::string error_message(const json& body, const std::string& field) {
  try {
    parsed(body);
  } catch (const hero::ApiError& e) {
    EXPECT_EQ(e.status, 400);
    EXPECT_EQ(e.param.substr(0, e.param.find('[')), field);
    return e.what();
  }
  ADD_FAILURE() << "accepted " << body;
  return "";
}

json with(const std::string& field, const json& value) { return {{"prompt", "x"}, {field, value}}; }

TEST(Request, Defaults) {
  const auto request = parsed({{"prompt", "hello"}});
  ASSERT_EQ(request.prompts.size(), 1u);
  EXPECT_EQ(std::get<std::string>(request.prompts[0]), "hello");
  EXPECT_FALSE(request.max_tokens || request.seed || request.echo || request.stream || request.ignore_eos);
  EXPECT_EQ(request.temperature, 1);
  EXPECT_EQ(request.top_p, 1);
  EXPECT_EQ(request.n, 1);
  EXPECT_EQ(request.logprobs, -1);
}

TEST(Request, PromptFormats) {
  EXPECT_EQ(parsed({{"prompt", {"a", ""}}}).prompts.size(), 2u);
  using Ids = std::vector<int64_t>;
  const auto one = parsed({{"prompt", {7, 0}}}).prompts;
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(std::get<Ids>(one[0]), (Ids{7, 0}));
  const auto two = parsed({{"prompt", {{7}, {8, 9}}}}).prompts;
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(std::get<Ids>(two[1]), (Ids{8, 9}));
}

TEST(Request, LmEvaluationHarness) {
  const auto request =
      parsed(json::parse(R"({"model": "m", "prompt": [[5, 6]], "temperature": 0, "max_tokens": 1,
      "logprobs": 1, "seed": 1234, "echo": true, "suffix": null, "best_of": 1, "presence_penalty": 0.0})"));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.max_tokens, 1);
  EXPECT_EQ(request.logprobs, 1);
  EXPECT_EQ(request.seed, 1234u);
  EXPECT_TRUE(request.echo);
}

TEST(Request, StopIsAStringOrAList) {
  EXPECT_EQ(parsed(with("stop", "a")).stop, std::vector<std::string>{"a"});
  EXPECT_EQ(parsed(with("stop", {"a", "b", "c", "d", "e"})).stop.size(), 5u);
  EXPECT_TRUE(parsed(with("stop", json::array())).stop.empty());
  EXPECT_NE(error_message(with("stop", {"a", ""}), "stop").find("found \"\""), std::string::npos);
  error_message(with("stop", std::vector<std::string>(65, "a")), "stop");
  error_message(with("stop", std::string(1025, 'a')), "stop");
}

TEST(Request, Seeds) {
  EXPECT_EQ(parsed(with("seed", -1)).seed, ~uint64_t{0});
  EXPECT_EQ(parsed(with("seed", ~uint64_t{0})).seed, ~uint64_t{0});
  error_message(with("seed", 1.5), "seed");
  error_message(with("seed", 1e30), "seed");
}

TEST(Request, InvalidTypesAndValues) {
  const json invalid[] = {
      {{"max_tokens", {"1", 1.5, -1, 4097, true, json::array(), 1e300, ~uint64_t{0}}}},
      {{"temperature", {"hot", -0.1, 101, 1e308, true, json::object()}}},
      {{"top_p", {1.1, -1, "1"}}},
      {{"top_k", {-2, 0.5, int64_t{1} << 40}}},
      {{"n", {0, 129, "2", 1.0}}},
      {{"logprobs", {true, 21, -1}}},
      {{"echo", {1, "true"}}},
      {{"stream", {0, "yes"}}},
      {{"model", {1, json::array()}}},
      {{"stop", {1, json::array({1}), json::object()}}},
      {{"user", {1}}},
      {{"stream_options", {json::object()}}},
  };
  for (const auto& entry : invalid) {
    const std::string field = entry.begin().key();
    for (const auto& value : entry.front()) {
      const auto message = error_message(with(field, value), field);
      EXPECT_TRUE(message.starts_with(field + ": found ")) << message;
      EXPECT_NE(message.find(", expected "), std::string::npos) << message;
    }
  }
}

TEST(Request, InvalidPrompts) {
  const json invalid[] = {nullptr,
                          1,
                          json::object(),
                          json::array(),
                          json::array({json::array()}),
                          {"a", {1}},
                          {{1}, "a"},
                          {1, "a"},
                          {1, -2},
                          {1, 2.5},
                          {{1}, {1, true}},
                          {nullptr},
                          {int64_t{1} << 31, 1}};
  for (const auto& prompt : invalid) {
    const auto message = error_message({{"prompt", prompt}}, "prompt");
    EXPECT_TRUE(message.starts_with("prompt")) << message;
  }
  EXPECT_EQ(error_message({{"echo", true}}, "prompt").find("prompt: found nothing, expected"), 0u);
}

TEST(Request, UnsupportedFields) {
  EXPECT_NE(error_message(with("suffix", "end"), "suffix").find("does not support"), std::string::npos);
  error_message(with("best_of", 2), "best_of");
  EXPECT_EQ(parsed({{"prompt", "x"}, {"n", 2}, {"best_of", 2}}).n, 2);
  error_message(with("presence_penalty", 0.5), "presence_penalty");
  error_message(with("frequency_penalty", -1), "frequency_penalty");
  error_message(with("logit_bias", {{"5", 1}}), "logit_bias");
  EXPECT_NO_THROW(parsed(with("logit_bias", json::object())));
  EXPECT_NE(error_message(with("min_p", 0.1), "min_p").find("found the field \"min_p\""), std::string::npos);
  EXPECT_NO_THROW(parsed(with("min_p", nullptr)));
}

TEST(Request, UnknownFieldsSuggestASimilarOne) {
  const auto message = error_message(with("max_new_tokens", 8), "max_new_tokens");
  EXPECT_TRUE(message.starts_with("body: found the field \"max_new_tokens\", expected one of model, "))
      << message;
  EXPECT_TRUE(message.ends_with("; did you mean max_tokens?")) << message;
  EXPECT_TRUE(error_message(with("topp", 0.9), "topp").ends_with("; did you mean top_p?"));
  for (const std::string& field : {std::string("messages"), std::string(1 << 20, 'n')}) {
    const auto unsuggested = error_message(with(field, 1), field);
    EXPECT_EQ(unsuggested.find("did you mean"), std::string::npos) << unsuggested;
  }
}

TEST(Request, Limits) {
  error_message(with("max_tokens", 0), "max_tokens");
  EXPECT_NO_THROW(parsed({{"prompt", "x"}, {"max_tokens", 0}, {"echo", true}}));
  hero::RequestLimits limits;
  limits.max_tokens = 8;
  EXPECT_THROW(hero::parse_completion_request(with("max_tokens", 9), limits), hero::ApiError);
  error_message({{"prompt", std::vector<std::string>(513, "x")}, {"n", 2}}, "prompt");
}

TEST(Request, StreamOptions) {
  json body{{"prompt", "x"}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
  EXPECT_TRUE(parsed(body).include_usage);
  body["stream_options"]["other"] = 1;
  error_message(body, "stream_options");
}

TEST(Body, RejectsNonObjects) {
  const auto rejected = [](const std::string& body) {
    try {
      hero::parse_body(body);
    } catch (const hero::ApiError& e) {
      return e.status == 400 && std::string(e.what()).starts_with("body");
    }
    return false;
  };
  for (const char* const body : {"", "null", "[1]", "{", "{\"a\": NaN}", "{\"a\": 1e400}", "{\"a\": 1} 2",
                                 "{\"a\": \"\xFF\"}", "{\"a\": \"\\ud800\"}", "{\"a\": 1, \"a\": 2}"}) {
    EXPECT_TRUE(rejected(body)) << body;
  }
  EXPECT_TRUE(rejected(std::string(1 << 20, '[')));
  EXPECT_TRUE(rejected("{\"a\": " + std::string(1000, '[') + std::string(1000, ']') + "}"));
}

// Brackets and escaped quotes in strings do not count.
TEST(Body, LimitOfCompositeValues) {
  const auto body = [](int64_t strings) {
    json prompts = json::array();
    for (int64_t i = 0; i < strings; ++i) prompts.push_back("[{\"\\\"[");
    return json{{"prompt", prompts}}.dump();  // an object, a key and a list besides
  };
  EXPECT_EQ(hero::parse_body(body(4093))["prompt"].size(), 4093u);
  try {
    hero::parse_body(body(4094));
    ADD_FAILURE() << "accepted";
  } catch (const hero::ApiError& e) {
    EXPECT_STREQ(e.what(), "body: found 4097 strings, lists and objects, expected at most 4096");
  }
}

TEST(Body, LimitOfCommas) {
  const auto body = [](int64_t commas) {
    std::string ids = "7";
    for (int64_t i = 0; i < commas; ++i) ids += ",7";
    return "{\"prompt\": [" + ids + "], \"model\": \",,,,\"}";  // a comma besides
  };
  constexpr int64_t kLimit = hero::RequestLimits::commas;
  EXPECT_EQ(hero::parse_body(body(kLimit - 1))["prompt"].size(), static_cast<size_t>(kLimit));
  try {
    hero::parse_body(body(kLimit));
    ADD_FAILURE() << "accepted";
  } catch (const hero::ApiError& e) {
    EXPECT_STREQ(e.what(), "body: found 1048577 commas between values, expected at most 1048576");
  }
}

}  // namespace completion_request_test
