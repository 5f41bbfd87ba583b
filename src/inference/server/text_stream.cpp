#include "inference/server/text_stream.h"

#include <algorithm>

#include "io/utf8.h"

namespace hero {
namespace {

// How many bytes a character has that begins with this one; 0 where none does.
size_t character_size(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

// Whether more bytes could complete this to one character: tried with the least and the greatest next byte.
bool begins_character(std::string_view bytes) {
  const size_t size = character_size(static_cast<unsigned char>(bytes[0]));
  if (bytes.size() >= size) return false;
  for (const char next : {'\x80', '\xBF'}) {
    std::string whole(bytes);
    whole.append(1, next).append(size - bytes.size() - 1, '\x80');
    if (find_invalid_utf8(whole) == std::string::npos) return true;
  }
  return false;
}

}  // namespace

std::string CharacterJoiner::add(std::string_view bytes) {
  begun_ += bytes;
  size_t whole = begun_.size();
  for (size_t back = 1; back <= std::min<size_t>(3, begun_.size()); ++back) {
    if (begins_character(std::string_view(begun_).substr(begun_.size() - back))) whole = begun_.size() - back;
  }
  std::string text = to_valid_utf8(begun_.substr(0, whole));
  begun_.erase(0, whole);
  return text;
}

std::string CharacterJoiner::finish() { return to_valid_utf8(std::exchange(begun_, {})); }

std::string StopFinder::add(std::string_view text) {
  if (found_) return "";
  held_ += text;
  // The first to be complete, whatever pieces the text comes in; of several that end together the longest.
  size_t begin = held_.npos, end = held_.npos;
  for (const auto& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == held_.npos || std::pair(at + stop.size(), at) >= std::pair(end, begin)) continue;
    begin = at;
    end = at + stop.size();
    found_ = true;
  }
  if (found_) return std::exchange(held_, {}).substr(0, begin);
  size_t longest = 0;  // beginning of a stop string at the end of the text
  for (const auto& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > longest; --size) {
      if (held_.ends_with(std::string_view(stop).substr(0, size))) longest = size;
    }
  }
  std::string free = held_.substr(0, held_.size() - longest);
  held_.erase(0, free.size());
  return free;
}

std::string StopFinder::finish() { return std::exchange(held_, {}); }

}  // namespace hero
