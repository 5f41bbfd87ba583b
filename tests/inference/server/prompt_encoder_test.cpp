#include "inference/server/prompt_encoder.h"

#include <gtest/gtest.h>

#include "inference/server/served_model.h"

namespace prompt_encoder_test {

using Prompts = std::vector<std::vector<int64_t>>;
constexpr auto kNever = hero::Clock::time_point::max();

hero::PromptEncoder encoder(int64_t positions) { return {served::tokenizer(), 300, positions}; }

hero::CompletionRequest request_of(const hero::Prompt& prompt, int64_t max_tokens = 1) {
  hero::CompletionRequest request;
  request.prompts = {prompt};
  request.max_tokens = max_tokens;
  return request;
}

// The error of encoding `request` with 70 positions.
hero::ApiError error_of(const hero::CompletionRequest& request, hero::Clock::time_point deadline = kNever) {
  try {
    encoder(70).encode(request, deadline);
  } catch (const hero::ApiError& e) {
    return e;
  }
  return {200, "no error"};
}

TEST(PromptEncoder, TextAndIds) {
  const auto text = encoder(70).encode(request_of("hello"), kNever);
  EXPECT_EQ(text, Prompts{served::ids("hello")});
  const std::vector<int64_t> ids{299, 0};
  EXPECT_EQ(encoder(70).encode(request_of(ids), kNever), Prompts{ids});
  EXPECT_EQ(error_of(request_of(std::vector<int64_t>{300})).status, 400);
}

TEST(PromptEncoder, PromptAndNewTokensFitIntoThePositions) {
  const std::vector<int64_t> ids(60, 5);
  EXPECT_EQ(error_of(request_of(ids, 10)).status, 200);
  const auto error = error_of(request_of(ids, 11));
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_STREQ(error.what(),
               "prompt[0]: found 60 tokens and max_tokens = 11, expected at most 70 in total "
               "(max_position_embeddings)");
}

TEST(PromptEncoder, LongTextIsRejectedBeforeTokenization) {
  const auto limit = static_cast<size_t>(encoder(70).max_text_bytes());
  EXPECT_EQ(encoder(140).max_text_bytes(), 2 * encoder(70).max_text_bytes());
  const auto tokens = error_of(request_of(std::string(limit, 'x')));
  EXPECT_NE(std::string(tokens.what()).find(" tokens and max_tokens"), std::string::npos) << tokens.what();
  const auto bytes = error_of(request_of(std::string(limit + 1, 'x')));
  EXPECT_EQ(bytes.status, 400);
  EXPECT_EQ(bytes.code, "context_length_exceeded");
  EXPECT_EQ(bytes.what(), "prompt[0]: found " + std::to_string(limit + 1) + " bytes, expected at most " +
                              std::to_string(limit) + ", which fit into 70 tokens (max_position_embeddings)");
}

TEST(PromptEncoder, Deadline) {
  const auto error = error_of(request_of("hello"), hero::Clock::now());
  EXPECT_EQ(error.status, 504);
  EXPECT_EQ(error.code, "timeout");
}

}  // namespace prompt_encoder_test
