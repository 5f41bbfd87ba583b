#include "io/suggest.h"

#include <gtest/gtest.h>

#include <string>

namespace hero {
namespace suggest_test {

TEST(EditDistance, CountsInsertedDeletedAndReplacedBytes) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("windwo", "window"), 2u);  // no transpositions
}

TEST(SimilarName, IsTheNearestWithinAThirdOfTheLength) {
  const std::vector<std::string_view> known{"top_k", "top_p", "max_tokens", "n"};
  EXPECT_EQ(similar_name(known, "max_token"), "max_tokens");
  EXPECT_EQ(similar_name(known, "max_new_tokens"), "max_tokens");  // 4 of 14 bytes
  EXPECT_EQ(similar_name(known, "topk"), "top_k");
  EXPECT_EQ(similar_name(known, "top_x"), "top_k");  // the first of two
  EXPECT_EQ(similar_name(known, "n"), "n");
  EXPECT_EQ(similar_name(known, "k"), "");      // 1 of 1 byte
  EXPECT_EQ(similar_name(known, "min_p"), "");  // 3 of 5 bytes
  EXPECT_EQ(similar_name({}, "n"), "");
}

TEST(SimilarName, IgnoresLongNames) {
  const std::string longest(64, 'a'), too_long(65, 'a');
  EXPECT_EQ(similar_name({longest}, longest), longest);
  EXPECT_EQ(similar_name({longest}, too_long), "");
}

}  // namespace suggest_test
}  // namespace hero
