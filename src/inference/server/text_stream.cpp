#include "inference/server/text_stream.h"

#include <algorithm>
#include <utility>

#include "io/utf8.h"

namespace hero {
namespace {

// Length in bytes of the UTF-8 character with this first byte; 0 for an invalid first byte.
size_t character_size(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

// Whether this is the beginning of a valid character. Tries the minimum and maximum continuation byte.
bool is_incomplete_character(std::string_view bytes) {
  const size_t size = character_size(static_cast<unsigned char>(bytes[0]));
  if (bytes.size() >= size) return false;
  for (const char next : {'\x80', '\xBF'}) {
    std::string whole(bytes);
    whole.append(1, next).append(size - bytes.size() - 1, '\x80');
    if (find_invalid_utf8(whole) == std::string::npos) return true;
  }
  return false;
}

constexpr std::string_view kReplacement = "\uFFFD";

// In valid UTF-8.
int64_t count_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

std::string Utf8StreamDecoder::add(std::string_view bytes) {
  pending_ += bytes;
  size_t complete = pending_.size();
  for (size_t back = 1; back <= std::min<size_t>(3, pending_.size()); ++back) {
    const auto tail = std::string_view(pending_).substr(pending_.size() - back);
    if (is_incomplete_character(tail)) complete = pending_.size() - back;
  }
  std::string text = to_valid_utf8(pending_.substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

std::string Utf8StreamDecoder::flush() { return to_valid_utf8(std::exchange(pending_, {})); }

int64_t TextOffset::add(std::string_view bytes) {
  const bool inside = decoder_.pending();
  const auto first = decoder_.add(bytes.substr(0, 1));
  // Invalid bytes before the token have become a character of their own. A whole U+FFFD is one character,
  // too, but then nothing is left.
  const bool replaced = inside && first.starts_with(kReplacement) &&
                        !(first.size() == kReplacement.size() && !decoder_.pending());
  const int64_t offset = characters_ + replaced;
  characters_ += count_characters(first);
  if (!bytes.empty()) characters_ += count_characters(decoder_.add(bytes.substr(1)));
  return offset;
}

void TextOffset::flush() { characters_ += count_characters(decoder_.flush()); }

std::string StopStringMatcher::add(std::string_view text) {
  if (found_) return "";
  pending_ += text;
  // The stop string that completes first, independent of chunking; the longest of several that end together.
  size_t begin = pending_.npos, end = pending_.npos;
  for (const auto& stop : stops_) {
    const size_t at = pending_.find(stop);
    if (at == pending_.npos || std::pair(at + stop.size(), at) >= std::pair(end, begin)) continue;
    begin = at;
    end = at + stop.size();
    found_ = true;
  }
  if (found_) return std::exchange(pending_, {}).substr(0, begin);
  size_t longest = 0;  // longest prefix of a stop string at the end of the text
  for (const auto& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, pending_.size()); size > longest; --size) {
      if (pending_.ends_with(std::string_view(stop).substr(0, size))) longest = size;
    }
  }
  std::string released = pending_.substr(0, pending_.size() - longest);
  pending_.erase(0, released.size());
  return released;
}

std::string StopStringMatcher::flush() { return std::exchange(pending_, {}); }

}  // namespace hero
