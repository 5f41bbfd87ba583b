#include "inference/server/constant_time.h"

#include <gtest/gtest.h>

namespace constant_time_test {

TEST(ConstantTime, MatchesEquality) {
  const std::string_view texts[] = {"", "a", "b", "aa", "ab", "ba", "secret", "secreT", "secretsecret"};
  for (const auto a : texts) {
    for (const auto b : texts) EXPECT_EQ(hero::equal_in_constant_time(a, b), a == b) << a << " " << b;
  }
  using namespace std::string_view_literals;
  EXPECT_FALSE(hero::equal_in_constant_time("\0"sv, ""sv));
  EXPECT_FALSE(hero::equal_in_constant_time("key\0"sv, "key"sv));
}

// Sizes that differ by a multiple of 256 are different.
TEST(ConstantTime, LongStrings) {
  const std::string key(16, 'k');
  EXPECT_FALSE(hero::equal_in_constant_time(std::string(16 + 256, 'k'), key));
  EXPECT_FALSE(hero::equal_in_constant_time(std::string(1 << 20, 'k'), key));
  EXPECT_TRUE(hero::equal_in_constant_time(key, key));
}

}  // namespace constant_time_test
