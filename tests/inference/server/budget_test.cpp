#include "inference/server/budget.h"

#include <gtest/gtest.h>

namespace budget_test {

// The status and message of the error, or 0.
std::pair<int, std::string> error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const hero::ApiError& e) {
    return {e.status, e.what()};
  }
  return {};
}

hero::CompletionRequest completion(int64_t n, int64_t logprobs, bool echo, bool stream = false) {
  hero::CompletionRequest request;
  request.n = n;
  request.logprobs = logprobs;
  request.echo = echo;
  request.stream = stream;
  return request;
}

TEST(Budget, EscapedSize) {
  EXPECT_EQ(hero::escaped_size(""), 0);
  EXPECT_EQ(hero::escaped_size("abc"), 3);
  EXPECT_EQ(hero::escaped_size("\"\\"), 4);
  EXPECT_EQ(hero::escaped_size(std::string_view("\0\n", 2)), 12);
  EXPECT_EQ(hero::escaped_size("\xe6\xb1\x89"), 3);
}

TEST(Budget, CostOfNewTokens) {
  auto request = completion(3, -1, false);
  request.prompts = {"four", std::vector<int64_t>{1, 2}};
  const std::vector<hero::PromptSize> sizes{{.tokens = 4}, {.tokens = 2}};
  const auto plain = hero::completion_cost(request, sizes, 10);
  EXPECT_EQ(plain.tokens, 4 + 2 + 2 * 3 * 10);
  EXPECT_EQ(plain.bytes, 4 + 256 + 2 * 3 * (96 + 10 * 8));
  request.stream = true;
  EXPECT_EQ(hero::completion_cost(request, sizes, 10).bytes, plain.bytes + 2 * 3 * 10 * 256);
}

// A request of 18 kB had a response of 291 MB.
TEST(Budget, CostOfEchoedLogprobs) {
  const std::vector<hero::PromptSize> sizes(8, {.tokens = 500, .echoed_bytes = 2000});
  const auto cost = hero::completion_cost(completion(128, 20, true), sizes, 0);
  EXPECT_EQ(cost.tokens, 8 * 128 * 500);
  EXPECT_EQ(cost.bytes, 256 + 8 * 128 * (96 + 3 * 2000 + 500 * (64 + 20 * 36)));
  hero::Budget budget({});
  const auto [status, message] = error_of([&] { budget.reserve(cost); });
  EXPECT_EQ(status, 400);
  EXPECT_EQ(message,
            "body: found a request of 407650560 bytes (prompts and estimated response), expected at most "
            "67108864 (--max-response)");
}

TEST(Budget, LargestRequestDoesNotOverflow) {
  const std::vector<hero::PromptSize> sizes(8, {.tokens = 1 << 20, .echoed_bytes = int64_t{1} << 30});
  const auto cost = hero::completion_cost(completion(128, 20, true, true), sizes, 1 << 20);
  EXPECT_EQ(cost.tokens, 8 * int64_t{128} * (2 << 20));
  EXPECT_GT(cost.bytes, int64_t{1} << 40);
}

TEST(Budget, LimitsOfARequestAndOfAll) {
  hero::Budget budget({.request = {.bytes = 100, .tokens = 10}, .total = {.bytes = 150, .tokens = 15}});
  EXPECT_EQ(error_of([&] { budget.reserve({.bytes = 101}); }).first, 400);
  const auto tokens = error_of([&] { budget.reserve({.tokens = 11}); });
  EXPECT_EQ(tokens.first, 400);
  EXPECT_NE(tokens.second.find("(--max-request-tokens)"), std::string::npos) << tokens.second;

  auto first = budget.reserve({.bytes = 100, .tokens = 10});
  const auto bytes = error_of([&] { budget.reserve({.bytes = 51}); });
  EXPECT_EQ(bytes.first, 503);
  EXPECT_EQ(bytes.second,
            "found a request of 51 bytes besides 100 of others, expected at most 150 in total "
            "(--max-pending-response): try again later");
  const auto more = error_of([&] { budget.reserve({.tokens = 6}); });
  EXPECT_EQ(more.first, 503);
  EXPECT_NE(more.second.find("(--max-pending-tokens)"), std::string::npos) << more.second;
  auto second = budget.reserve({.bytes = 50, .tokens = 5});
  EXPECT_EQ(error_of([&] { budget.reserve({.bytes = 1}); }).first, 503);
  first.reset();
  first = budget.reserve({.bytes = 100, .tokens = 10});
  second.reset();
  first.reset();
  EXPECT_EQ(error_of([&] { budget.reserve({.bytes = 100, .tokens = 10}); }).first, 0);
}

}  // namespace budget_test
