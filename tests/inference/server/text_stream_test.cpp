#include "inference/server/text_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "io/utf8.h"

namespace {

const std::string kReplacement = "\xEF\xBF\xBD";

// What comes out of pieces, each of which must be whole.
std::string joined(const std::vector<std::string>& pieces) {
  hero::CharacterJoiner joiner;
  std::string text;
  for (const auto& piece : pieces) {
    const std::string part = joiner.add(piece);
    EXPECT_EQ(hero::find_invalid_utf8(part), std::string::npos);
    text += part;
  }
  return text + joiner.finish();
}

TEST(CharacterJoiner, HoldsWhatIsBegun) {
  hero::CharacterJoiner joiner;
  EXPECT_EQ(joiner.add("a\xE6"), "a");
  EXPECT_EQ(joiner.add("\xB1"), "");
  EXPECT_EQ(joiner.add("\x89z\xF0\x9F"), "\xE6\xB1\x89z");
  EXPECT_EQ(joiner.add("\x99"), "");
  EXPECT_EQ(joiner.add("\x82"), "\xF0\x9F\x99\x82");
  EXPECT_EQ(joiner.finish(), "");
}

TEST(CharacterJoiner, HoldsNothingThatCanBecomeNoCharacter) {
  for (const std::string bytes : {"\xFF", "\x80", "\xC0", "\xC1", "\xF5", "\xE0\x80", "\xED\xA0", "\xF4\x90",
                                  "\xF0\x8F", "\xE6\xB1\xFF", "\xC3\x28"}) {
    hero::CharacterJoiner joiner;
    EXPECT_EQ(joiner.add(bytes), hero::to_valid_utf8(bytes)) << testing::PrintToString(bytes);
    EXPECT_EQ(joiner.finish(), "");
  }
}

TEST(CharacterJoiner, EndsInTheMiddleOfACharacter) {
  EXPECT_EQ(joined({"a", "\xF0\x9F"}), "a" + kReplacement);
  EXPECT_EQ(joined({"\xE2", "\x82", "a"}), kReplacement + "a");
}

// Random bytes, mostly of characters, in random pieces: the same text as all at once.
TEST(CharacterJoiner, PiecesDoNotMatter) {
  std::mt19937 draw(1);
  const std::vector<std::string> parts = {
      "a",    "\xC3\xBC", "\xE6\xB1\x89", "\xF0\x9F\x99\x82", "\xE0\xA4", "\xF4\x8F\xBF\xBF",
      "\xFF", "\x80",     "\xED\x9F\xBF", "\xF0\x90"};
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 6; ++i) bytes += parts[draw() % parts.size()];
    std::vector<std::string> pieces;
    for (size_t begin = 0; begin < bytes.size();) {
      const size_t size = 1 + draw() % 3;
      pieces.push_back(bytes.substr(begin, size));
      begin += size;
    }
    ASSERT_EQ(joined(pieces), hero::to_valid_utf8(bytes)) << testing::PrintToString(bytes);
  }
}

std::string until(const std::vector<std::string>& stops, const std::vector<std::string>& pieces, bool found) {
  hero::StopFinder finder(stops);
  std::string text;
  for (const auto& piece : pieces) text += finder.add(piece);
  text += finder.finish();
  EXPECT_EQ(finder.found(), found);
  return text;
}

TEST(StopFinder, FindsAcrossPieces) {
  EXPECT_EQ(until({"stop"}, {"a s", "to", "p b", "c"}, true), "a ");
  EXPECT_EQ(until({"stop"}, {"a stop", "stop"}, true), "a ");
  EXPECT_EQ(until({"aab"}, {"a", "a", "a", "b"}, true), "a");
  EXPECT_EQ(until({"\n\n"}, {"a\n", "b\n", "\nc"}, true), "a\nb");
  EXPECT_EQ(until({"汉字"}, {"一汉", "字"}, true), "一");
}

TEST(StopFinder, TheFirstOfSeveral) {
  EXPECT_EQ(until({"xyz", "y"}, {"ax", "yz"}, true), "ax") << "complete before the other";
  EXPECT_EQ(until({"yz", "xyz"}, {"ax", "yz"}, true), "a") << "the longer of two that end together";
  EXPECT_EQ(until({"late", "b"}, {"ab late"}, true), "a");
}

TEST(StopFinder, GivesBackWhatWasNoStopString) {
  EXPECT_EQ(until({"stop"}, {"a sto", "re sto"}, false), "a store sto");
  EXPECT_EQ(until({}, {"a", "b"}, false), "ab");
  hero::StopFinder finder({"stop"});
  EXPECT_EQ(finder.add("a sto"), "a ");
  EXPECT_EQ(finder.add("re"), "store");
}

// Against a search in the whole text, over a small alphabet, where beginnings are often there.
TEST(StopFinder, PiecesDoNotMatter) {
  std::mt19937 draw(2);
  const auto word = [&](size_t size) {
    std::string text;
    for (size_t i = 0; i < size; ++i) text += static_cast<char>('a' + draw() % 2);
    return text;
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops, pieces;
    for (size_t i = 0; i < 1 + draw() % 3; ++i) stops.push_back(word(1 + draw() % 5));
    std::string text;
    for (int i = 0; i < 6; ++i) text += pieces.emplace_back(word(draw() % 4));
    size_t read = 0, cut = 0;  // letter by letter
    while (read < text.size() && cut == 0) {
      ++read;
      for (const auto& stop : stops) {
        if (text.substr(0, read).ends_with(stop)) cut = std::max(cut, stop.size());
      }
    }
    ASSERT_EQ(until(stops, pieces, cut > 0), text.substr(0, read - cut)) << text;
  }
}

}  // namespace
