#include "inference/server/request_output.h"

#include <gtest/gtest.h>

namespace request_output_test {

using namespace std::chrono_literals;

// A slow reader receives the outputs of a sequence since its last call as one.
TEST(RequestOutput, MergesOutputsOfASequence) {
  hero::RequestOutput output(2, /*stream=*/true);
  const auto prompt = std::make_shared<hero::LoggedTokens>();
  for (int64_t id = 0; id < 3; ++id) {
    hero::SequenceOutput next{.sequence = 1, .text = std::to_string(id), .num_generated = 1};
    if (id == 0) next.prompt = prompt;
    next.tokens.add(id, hero::TokenLogprobs{-0.5 * static_cast<double>(id), {{id + 7, -0.25}}});
    if (id == 2) next.finish_reason = "stop";
    output.push(std::move(next));
    if (id == 0) output.push({.sequence = 0, .text = "x"});
  }
  const auto found = output.wait(1ms);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].text, "x");
  EXPECT_EQ(found[1].sequence, 1u);
  EXPECT_EQ(found[1].text, "012");
  EXPECT_EQ(found[1].prompt, prompt);
  EXPECT_EQ(found[1].num_generated, 3);
  EXPECT_STREQ(found[1].finish_reason, "stop");
  int64_t count = 0;
  found[1].tokens.for_each([&](int64_t id, std::optional<double> logprob, std::span<const int32_t> top_ids,
                               std::span<const double> top_logprobs) {
    EXPECT_EQ(id, count++);
    EXPECT_EQ(logprob, -0.5 * static_cast<double>(id));
    ASSERT_EQ(top_ids.size(), 1u);
    EXPECT_EQ(top_ids[0], id + 7);
    EXPECT_EQ(top_logprobs[0], -0.25);
  });
  EXPECT_EQ(count, 3);
  EXPECT_FALSE(output.done());
  output.push({.sequence = 0, .finish_reason = "length"});
  EXPECT_EQ(output.wait(1ms).size(), 1u);
  EXPECT_TRUE(output.done());
}

}  // namespace request_output_test
