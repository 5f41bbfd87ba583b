// Completion objects: token strings, text offsets, and streamed chunks that add up to the complete response.
#include "inference/server/completion_response.h"

#include <gtest/gtest.h>

#include <random>

#include "inference/server/served_model.h"
#include "inference/server/token_text.h"

namespace completion_response_test {

using nlohmann::json;

using Token = std::pair<int64_t, std::optional<hero::TokenLogprobs>>;

Token token(int64_t id, double chosen, std::vector<std::pair<int64_t, double>> top) {
  return {id, hero::TokenLogprobs{chosen, std::move(top)}};
}

hero::LoggedTokens logged(const std::vector<Token>& tokens) {
  hero::LoggedTokens found;
  for (const auto& [id, logprobs] : tokens) found.add(id, logprobs);
  return found;
}

// The parts that `write` receives, concatenated.
std::string complete_text(hero::CompletionResponse& response) {
  std::string text;
  EXPECT_TRUE(response.write([&](std::string_view part) {
    EXPECT_FALSE(part.empty()) << "ends a chunked response";
    text += part;
    return true;
  }));
  return text;
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
  completion.add({.prompt = std::make_shared<hero::LoggedTokens>(logged({{0xE6, std::nullopt},
                                                                         token(0xB1, -1, {{5, -0.5}}),
                                                                         token(0x89, -2, {{0x89, -2}}),
                                                                         token('b', -3, {{'c', -1}})}))});
  completion.add({.text = "d",
                  .tokens = logged({token('d', -4, {{'d', -4}})}),
                  .num_generated = 1,
                  .finish_reason = "length"});
  const auto complete = json::parse(complete_text(completion));
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
  completion.add({.tokens = logged({token('x', -INFINITY, {{'y', logprob}, {'x', -INFINITY}}),
                                    token('y', logprob, {{'y', logprob}, {'z', NAN}})}),
                  .finish_reason = "stop"});
  const auto logs = json::parse(complete_text(completion))["choices"][0]["logprobs"];
  EXPECT_EQ(logs["token_logprobs"][0], -9999.0);
  EXPECT_EQ(logs["top_logprobs"][0], (json{{"x", -9999.0}, {"y", logprob}}));
  EXPECT_EQ(logs["token_logprobs"][1].get<double>(), logs["top_logprobs"][1]["y"].get<double>());
}

// Random ids (special tokens, parts of characters, ids without text), texts and log-probabilities.
hero::SequenceOutput random_output(std::mt19937& random, size_t sequence,
                                   const std::shared_ptr<const hero::LoggedTokens>& prompt) {
  hero::SequenceOutput output{.sequence = sequence, .prompt = prompt, .finish_reason = "length"};
  std::vector<int64_t> ids;
  std::normal_distribution<double> logprob(-5, 30);
  const auto id = [&] { return static_cast<int64_t>(random() % 300); };
  for (int i = 0; i < 40; ++i) {
    ids.push_back(id());
    output.tokens.add(ids.back(),
                      hero::TokenLogprobs{logprob(random), {{id(), logprob(random)}, {id(), -1}}});
  }
  output.text = hero::decode_text(served::tokenizer(), ids);
  return output;
}

// The parts are what the whole object would be as a single JSON value, and end after a failed write.
TEST(Response, PartsAreOneJsonValue) {
  std::mt19937 random(3);
  hero::CompletionRequest request{
      .prompts = {std::string("\"\\\n\x01汉"), std::vector<int64_t>{0xE6, 9}}, .n = 40, .logprobs = 2};
  for (const bool echo : {false, true}) {
    request.echo = echo;
    const auto prompt = std::make_shared<hero::LoggedTokens>(
        logged({{'a', std::nullopt}, token(0xE6, -1e-300, {{258, -0.1}}), token(259, -1, {})}));
    std::vector<hero::SequenceOutput> outputs;
    for (size_t i = 0; i < 80; ++i) outputs.push_back(random_output(random, i, echo ? prompt : nullptr));
    auto completion = response(request, {{'a', 0xE6, 259}, {0xE6, 9}});
    for (const auto& output : outputs) completion.add(output);
    const auto text = complete_text(completion);
    EXPECT_EQ(text, nlohmann::ordered_json::parse(text).dump());
    const auto choices = json::parse(text)["choices"];
    ASSERT_EQ(choices.size(), outputs.size());
    for (size_t i = 0; i < choices.size(); ++i) {
      EXPECT_EQ(choices[i]["index"], i);
      EXPECT_TRUE(choices[i]["text"].get<std::string>().ends_with(outputs[i].text));
      for (const auto& [name, array] : choices[i]["logprobs"].items()) {
        EXPECT_EQ(array.size(), 40u + (echo ? 3 : 0)) << name;
      }
    }
    for (const auto& output : outputs) completion.add(output);
    int calls = 0;
    EXPECT_FALSE(completion.write([&](std::string_view) { return ++calls < 2; }));
    EXPECT_EQ(calls, 2);
  }
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
