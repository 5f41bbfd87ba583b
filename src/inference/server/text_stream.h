// Converts the bytes of tokens to streamable text: complete UTF-8 characters without stop strings.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hero {

/// Decodes UTF-8 incrementally: the bytes of a character may come from several tokens.
class Utf8StreamDecoder {
 public:
  /// Adds bytes and returns the text that is now complete. Keeps back an incomplete character at the end;
  /// replaces invalid UTF-8 by U+FFFD, as to_valid_utf8.
  std::string add(std::string_view bytes);
  /// Returns the remaining bytes as valid UTF-8.
  std::string flush();
  /// Whether an incomplete character is kept back.
  bool pending() const { return !pending_.empty(); }

 private:
  std::string pending_;
};

/// Offsets of tokens in a text, in characters.
class TextOffset {
 public:
  /// Returns the offset of a token with these bytes: of its first character, or, if it starts inside of a
  /// character, of that one.
  int64_t add(std::string_view bytes);
  /// The text ends here: an incomplete character is replaced.
  void flush();

 private:
  Utf8StreamDecoder decoder_;
  int64_t characters_ = 0;  // of the decoded text
};

/// Finds stop strings in streamed text, also across chunk boundaries.
class StopStringMatcher {
 public:
  /// `stops`: valid UTF-8, none empty.
  explicit StopStringMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Adds complete characters and returns the text up to the stop string that completes first. Keeps back
  /// text that may be the beginning of a stop string. Returns nothing after a stop string.
  std::string add(std::string_view text);
  /// Returns the text kept back, if no stop string was found.
  std::string flush();
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;  // may be the beginning of a stop string
  bool found_ = false;
};

}  // namespace hero
