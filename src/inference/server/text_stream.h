// From the bytes of tokens to text that may be sent: whole characters only, and nothing of a stop string.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace hero {

/// Puts characters together whose bytes come from several tokens.
class CharacterJoiner {
 public:
  /// Takes bytes, and returns the text that is whole with them: a character that is begun and may still be
  /// completed stays behind. What can become no character is U+FFFD, as to_valid_utf8 has it.
  std::string add(std::string_view bytes);
  /// The rest.
  std::string finish();

 private:
  std::string begun_;
};

/// Finds stop strings, whatever pieces the text comes in.
class StopFinder {
 public:
  /// `stops`: valid UTF-8, none empty.
  explicit StopFinder(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Takes whole characters, and returns those that are before the stop string that is complete first,
  /// whether it is there or may still come. After a stop string nothing more is returned.
  std::string add(std::string_view text);
  /// The rest, where no stop string was found.
  std::string finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // the beginning of a stop string, perhaps
  bool found_ = false;
};

}  // namespace hero
