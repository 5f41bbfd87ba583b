#include "tokenizer/pre_tokenizer.h"

#include <vector>

#include "data/files.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/oniguruma.h"

namespace hero {
namespace pre_tokenizer_test {

using Behavior = PreTokenizer::Behavior;
using Words = std::vector<std::string>;

Words split(const PreTokenizer& steps, std::string_view text) {
  PreTokenizer::Scratch scratch;
  steps.split(text, scratch);
  return {scratch.words.begin(), scratch.words.end()};
}

Words split(const std::string& pattern, std::string_view text, Behavior behavior = Behavior::isolated,
            bool invert = false) {
  PreTokenizer steps;
  steps.add_split(Regex(pattern, "p"), behavior, invert);
  return split(steps, text);
}

TEST(PreTokenizer, Behaviors) {
  EXPECT_EQ(split("-", "a--b-"), (Words{"a", "-", "-", "b", "-"}));
  EXPECT_EQ(split("-", "a--b-", Behavior::removed), (Words{"a", "b"}));
  EXPECT_EQ(split("-", "a--b-", Behavior::contiguous), (Words{"a", "--", "b", "-"}));
  EXPECT_EQ(split("-", "a--b-", Behavior::merged_with_previous), (Words{"a-", "-", "b-"}));
  EXPECT_EQ(split("-", "a--b-", Behavior::merged_with_next), (Words{"a", "-", "-b", "-"}));
  EXPECT_EQ(split("[a-z]", "a--b-", Behavior::removed, true), (Words{"a", "b"}));
  EXPECT_EQ(split("x*", "axb"), (Words{"a", "x", "b"}));  // empty matches split too
  EXPECT_EQ(split("", "ab"), (Words{"a", "b"}));
}

TEST(PreTokenizer, StepsSplitPiecesOfPreviousStep) {
  PreTokenizer steps;
  steps.add_split(CharacterSet("[:N:]"), Behavior::isolated, false);
  steps.add_split(Regex(R"(\s+(?!\S)|\s+|\w+)", "p"), Behavior::isolated, false);
  EXPECT_EQ(split(steps, "ab  1 c"), (Words{"ab", "  ", "1", " ", "c"}));
  EXPECT_EQ(split(steps, "ab  c"), (Words{"ab", " ", " ", "c"}));
  steps.add_prefix_space();
  EXPECT_EQ(split(steps, "a1 "), (Words{" a", " 1", " "}));
  EXPECT_FALSE(steps.keeps_text());
  EXPECT_EQ(split(steps, ""), Words{});
}

TEST(PreTokenizer, CharacterClassesMatchOniguruma) {
  EXPECT_EQ(split(R"(\s+)", "a\u0085\u00A0\u3000b\u180E", Behavior::removed), (Words{"a", "b\u180E"}));
  EXPECT_EQ(split(R"([^\S\n]+)", "a \u2003\nb", Behavior::removed), (Words{"a", "\nb"}));
  EXPECT_EQ(split(R"(\d)", "1\u0661\u00BD", Behavior::removed), (Words{"\u00BD"}));
  EXPECT_EQ(split(R"(\w+)", "a\u0301_\u00B2-\u203F", Behavior::removed), (Words{"-"}));
  EXPECT_EQ(split(R"(\W)", "a-b", Behavior::removed), (Words{"a", "b"}));
  EXPECT_EQ(split(R"(\bx\b)", "xx x\u00E9 x", Behavior::removed), (Words{"xx x\u00E9 "}));
  EXPECT_EQ(split(R"((?i:'s|'LL))", "a'\u017Fb'lL", Behavior::removed), (Words{"a", "b"}));
  // U+30FC is in kana scripts only by script extensions.
  EXPECT_EQ(split(R"(\p{Hiragana}+)", "\u3042\u30FC", Behavior::removed), (Words{"\u30FC"}));
  EXPECT_EQ(split(R"(\p{^L}+|\P{L}+)", "a1\u4E00", Behavior::removed), (Words{"a", "\u4E00"}));
  EXPECT_EQ(split(R"(^b|.$)", "a\nb\nc!", Behavior::removed), (Words{"\n", "\nc"}));
  EXPECT_EQ(split(R"(\x41\u4E00\x{1F600}\v)", "A\u4E00\U0001F600\x0B!", Behavior::removed), (Words{"!"}));
  EXPECT_EQ(split(R"(a{,2}b{1,}c{2}d{)", "aabccd{", Behavior::removed), Words{});
  EXPECT_EQ(split(R"([ \-\]\[]++x?+)", "- []x!", Behavior::removed), (Words{"!"}));
}

TEST(PreTokenizer, RejectsPatternsWithoutExactTranslation) {
  const std::pair<const char*, const char*> kRejected[] = {
      {"(a)\\1", "character 3: found \"\\1\""},
      {"a\\h", "character 1: found \"\\h\""},
      {"[a&&b]", "character 2: found \"&&\" inside a class"},
      {"[a[bc]]", "character 2: found \"[\" inside a class"},
      {"[[:alpha:]]", "character 1: found \"[\" inside a class"},
      {"a{1,2}+", "character 1: found \"{1,2}+\""},
      {"a{2}?", "character 1: found \"{2}?\""},
      {"a(?i)b", "character 1: found the group \"(?i)\""},
      {"(?<n>a)", "character 0: found the group \"(?<n\""},
      {"(?i:ss)", "character 4: found \"ss\" inside (?i: )"},
      {"(?i:\\p{Lu})", "character 4: found a property inside"},
      {"(?i:\u00E9)", "character 4: found a character outside"}};
  for (const auto& [pattern, message] : kRejected) {
    const auto found = user_error([&, p = pattern] { pcre2_pattern(p, "f.json"); });
    EXPECT_EQ(found.rfind(std::string("f.json: ") + message, 0), 0u) << pattern << ": " << found;
  }
  EXPECT_NE(
      user_error([] { Regex("a(", "f.json"); }).find("f.json: found \"a(\", expected a regular expression"),
      std::string::npos);
  EXPECT_NE(user_error([] { Regex("\\p{Nope}", "f.json"); }).find("expected a regular expression"),
            std::string::npos);
}

TEST(PreTokenizer, LongRunsDoNotOverflowTheStack) {
  const std::string text(200000, ' ');
  EXPECT_EQ(split(R"((?:\s|x)+(?!\S))", text), Words{text});
}

AddedToken token(const std::string& content, int32_t id) {
  AddedToken token;
  token.content = content;
  token.id = id;
  return token;
}

std::string sections(const AddedTokens& tokens, std::string_view text) {
  std::string found;
  for (const auto& [part, id] : tokens.split(text)) {
    found += (found.empty() ? "" : "|") + (id < 0 ? std::string(part) : std::to_string(id));
  }
  return found;
}

TEST(PreTokenizer, LimitsBacktracking) {
  const auto matches = [](const std::string& pattern, const std::string& text) {
    std::vector<std::pair<std::size_t, std::size_t>> found;
    Regex(pattern, "f.json").find(text, found);
    return found.size();
  };
  for (const std::string pattern : {"(?:a|aa)+(?=[cd])|a", "a*(?=b)|a"}) {  // exponential, quadratic
    EXPECT_EQ(
        user_error([&] { matches(pattern, std::string(100'000, 'a')); }),
        "f.json: found \"" + pattern +
            "\", expected a regular expression with less backtracking (match limit exceeded in a text of "
            "100000 bytes)");
  }
  EXPECT_EQ(matches("a*(?=b)|a", std::string(1000, 'a')), 1000u);
  // One word or run of spaces of any length is within the limit.
  for (const char c : {'a', ' ', '\n', '?'}) {
    EXPECT_EQ(matches(R"([^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
                      std::string(std::size_t{20} << 20, c)),
              1u);
  }
}

TEST(AddedTokens, LeftmostThenLongest) {
  const AddedTokens tokens({token("<a>", 1), token("<a>!", 2), token("a><", 3), token("\u00E9", 4)});
  EXPECT_EQ(sections(tokens, "x<a><a>!y"), "x|1|2|y");
  EXPECT_EQ(sections(tokens, "a><a>"), "3|a>");
  EXPECT_EQ(sections(tokens, "<a<a>\u00E9<"), "<a|1|4|<");
  EXPECT_EQ(sections(tokens, ""), "");
}

TEST(AddedTokens, WordsAndWhitespace) {
  auto left = token("<l>", 1), right = token("<r>", 2), word = token("w", 3);
  left.lstrip = right.rstrip = word.single_word = true;
  const AddedTokens tokens({left, right, word});
  EXPECT_EQ(sections(tokens, "a \u3000<l> b <r>\n\u2003c"), "a|1| b |2|c");
  EXPECT_EQ(sections(tokens, "<r> <l> "), "2|1| ");  // the first token includes the space
  EXPECT_EQ(sections(tokens, "w ww \u00E9w w\u0301 -w-"), "3| ww \u00E9w w\u0301 -|3|-");
  auto spaces = token("  ", 4);
  spaces.lstrip = spaces.rstrip = true;
  EXPECT_EQ(sections(AddedTokens({spaces}), "a     b"), "a|4|b");  // one token of five spaces
}

}  // namespace pre_tokenizer_test
}  // namespace hero
