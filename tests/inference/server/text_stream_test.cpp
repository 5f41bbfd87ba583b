#include "inference/server/text_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "io/utf8.h"

namespace text_stream_test {

const std::string kReplacement = "\xEF\xBF\xBD";

// Decodes chunks and checks that each output is valid UTF-8.
std::string decode(const std::vector<std::string>& chunks) {
  hero::Utf8StreamDecoder decoder;
  std::string text;
  for (const auto& chunk : chunks) {
    const std::string output = decoder.add(chunk);
    EXPECT_EQ(hero::find_invalid_utf8(output), std::string::npos);
    text += output;
  }
  return text + decoder.flush();
}

TEST(Utf8StreamDecoder, KeepsBackIncompleteCharacters) {
  hero::Utf8StreamDecoder decoder;
  EXPECT_EQ(decoder.add("a\xE6"), "a");
  EXPECT_EQ(decoder.add("\xB1"), "");
  EXPECT_EQ(decoder.add("\x89z\xF0\x9F"), "\xE6\xB1\x89z");
  EXPECT_EQ(decoder.add("\x99"), "");
  EXPECT_EQ(decoder.add("\x82"), "\xF0\x9F\x99\x82");
  EXPECT_EQ(decoder.flush(), "");
}

TEST(Utf8StreamDecoder, DoesNotKeepBackInvalidBytes) {
  for (const std::string bytes : {"\xFF", "\x80", "\xC0", "\xC1", "\xF5", "\xE0\x80", "\xED\xA0", "\xF4\x90",
                                  "\xF0\x8F", "\xE6\xB1\xFF", "\xC3\x28"}) {
    hero::Utf8StreamDecoder decoder;
    EXPECT_EQ(decoder.add(bytes), hero::to_valid_utf8(bytes)) << testing::PrintToString(bytes);
    EXPECT_EQ(decoder.flush(), "");
  }
}

TEST(Utf8StreamDecoder, EndsInsideACharacter) {
  EXPECT_EQ(decode({"a", "\xF0\x9F"}), "a" + kReplacement);
  EXPECT_EQ(decode({"\xE2", "\x82", "a"}), kReplacement + "a");
}

// Random, mostly valid bytes in random chunks decode like the whole.
TEST(Utf8StreamDecoder, ChunkingDoesNotMatter) {
  std::mt19937 random(1);
  const std::vector<std::string> parts = {
      "a",    "\xC3\xBC", "\xE6\xB1\x89", "\xF0\x9F\x99\x82", "\xE0\xA4", "\xF4\x8F\xBF\xBF",
      "\xFF", "\x80",     "\xED\x9F\xBF", "\xF0\x90"};
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 6; ++i) bytes += parts[random() % parts.size()];
    std::vector<std::string> chunks;
    for (size_t begin = 0; begin < bytes.size();) {
      const size_t size = 1 + random() % 3;
      chunks.push_back(bytes.substr(begin, size));
      begin += size;
    }
    ASSERT_EQ(decode(chunks), hero::to_valid_utf8(bytes)) << testing::PrintToString(bytes);
  }
}

std::string text_before_stop(const std::vector<std::string>& stops, const std::vector<std::string>& chunks,
                             bool found) {
  hero::StopStringMatcher matcher(stops);
  std::string text;
  for (const auto& chunk : chunks) text += matcher.add(chunk);
  text += matcher.flush();
  EXPECT_EQ(matcher.found(), found);
  return text;
}

TEST(StopStringMatcher, FindsStopsAcrossChunks) {
  EXPECT_EQ(text_before_stop({"stop"}, {"a s", "to", "p b", "c"}, true), "a ");
  EXPECT_EQ(text_before_stop({"stop"}, {"a stop", "stop"}, true), "a ");
  EXPECT_EQ(text_before_stop({"aab"}, {"a", "a", "a", "b"}, true), "a");
  EXPECT_EQ(text_before_stop({"\n\n"}, {"a\n", "b\n", "\nc"}, true), "a\nb");
  EXPECT_EQ(text_before_stop({"汉字"}, {"一汉", "字"}, true), "一");
}

std::vector<int64_t> offsets(const std::vector<std::string>& tokens) {
  hero::TextOffset offset;
  std::vector<int64_t> found;
  for (const auto& token : tokens) found.push_back(offset.add(token));
  offset.flush();
  found.push_back(offset.add("end"));
  return found;
}

TEST(TextOffset, InvalidBytesAreCharacters) {
  using Offsets = std::vector<int64_t>;
  EXPECT_EQ(offsets({"\x80", "\x80", "x"}), (Offsets{0, 1, 2, 3}));
  EXPECT_EQ(offsets({"x", "\x80", "y"}), (Offsets{0, 1, 2, 3}));
  EXPECT_EQ(offsets({"\xE6", "\xB1", "\x89z", "b"}), (Offsets{0, 0, 0, 2, 3}));
  EXPECT_EQ(offsets({"\xE6", "a", "\xE6"}), (Offsets{0, 1, 2, 3})) << "an incomplete character is replaced";
  EXPECT_EQ(offsets({"\xE6", "\xE6", "\xB1\x89"}), (Offsets{0, 1, 1, 2}));
  EXPECT_EQ(offsets({"\xEF\xBF", "\xBD", "a"}), (Offsets{0, 0, 1, 2})) << "U+FFFD itself";
  EXPECT_EQ(offsets({"\xF4", "\x90", "a"}), (Offsets{0, 1, 2, 3})) << "beyond U+10FFFF";
  EXPECT_EQ(offsets({"a", "", "b"}), (Offsets{0, 1, 1, 2}));
}

// Random bytes: a token's offset is the number of characters of the text before it, at the latest before its
// first byte's.
TEST(TextOffset, RandomBytes) {
  std::mt19937 random(3);
  const std::string bytes = "a\x80\x89\xB1\xBD\xBF\xC3\xE6\xEF\xF0\xF4\x90";
  const auto characters = [](const std::string& text) {
    return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
  };
  for (int round = 0; round < 20000; ++round) {
    hero::TextOffset offset;
    std::string all;
    for (int i = 0; i < 5; ++i) {
      std::string token;
      for (size_t n = 1 + random() % 3; n > 0; --n) token += bytes[random() % bytes.size()];
      const auto before = characters(hero::to_valid_utf8(all));
      const bool inside = hero::to_valid_utf8(all + token[0]) !=
                          hero::to_valid_utf8(all) + hero::to_valid_utf8(token.substr(0, 1));
      ASSERT_EQ(offset.add(token), before - inside) << round;
      all += token;
    }
  }
}

TEST(StopStringMatcher, FirstOfSeveral) {
  EXPECT_EQ(text_before_stop({"xyz", "y"}, {"ax", "yz"}, true), "ax") << "completes first";
  EXPECT_EQ(text_before_stop({"yz", "xyz"}, {"ax", "yz"}, true), "a") << "the longer match";
  EXPECT_EQ(text_before_stop({"late", "b"}, {"ab late"}, true), "a");
}

TEST(StopStringMatcher, ReleasesPartialMatches) {
  EXPECT_EQ(text_before_stop({"stop"}, {"a sto", "re sto"}, false), "a store sto");
  EXPECT_EQ(text_before_stop({}, {"a", "b"}, false), "ab");
  hero::StopStringMatcher matcher({"stop"});
  EXPECT_EQ(matcher.add("a sto"), "a ");
  EXPECT_EQ(matcher.add("re"), "store");
}

// Against a search in the full text. The small alphabet makes partial matches frequent.
TEST(StopStringMatcher, ChunkingDoesNotMatter) {
  std::mt19937 random(2);
  const auto word = [&](size_t size) {
    std::string text;
    for (size_t i = 0; i < size; ++i) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops, chunks;
    for (size_t i = 0; i < 1 + random() % 3; ++i) stops.push_back(word(1 + random() % 5));
    std::string text;
    for (int i = 0; i < 6; ++i) text += chunks.emplace_back(word(random() % 4));
    size_t read = 0, cut = 0;  // byte by byte
    while (read < text.size() && cut == 0) {
      ++read;
      for (const auto& stop : stops) {
        if (text.substr(0, read).ends_with(stop)) cut = std::max(cut, stop.size());
      }
    }
    ASSERT_EQ(text_before_stop(stops, chunks, cut > 0), text.substr(0, read - cut)) << text;
  }
}

}  // namespace text_stream_test
