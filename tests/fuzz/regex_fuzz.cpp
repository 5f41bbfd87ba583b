// Regular expressions of tokenizer.json: PATTERN NUL TEXT.
#include "fuzz/checks.h"
#include "fuzz/targets.h"
#include "io/utf8.h"
#include "tokenizer/regex.h"

namespace hero::fuzz {

bool read_regex(std::string_view bytes) {
  return accepted(bytes, [](std::string_view input) {
    const size_t end = std::min(input.find('\0'), input.size());
    const std::string pattern = to_valid_utf8(std::string(input.substr(0, end)));
    const std::string text = to_valid_utf8(std::string(input.substr(std::min(end + 1, input.size()))));
    std::vector<std::pair<size_t, size_t>> matches;
    Regex(pattern, kFile).find(text, matches);
    size_t last = 0;
    for (const auto& [begin, stop] : matches) {
      require(last <= begin && begin <= stop && stop <= text.size(),
              "matches that overlap or are out of bounds");
      require(utf8_floor(text, begin) == begin && utf8_floor(text, stop) == stop,
              "a match inside a character");
      last = stop;
    }
  });
}

}  // namespace hero::fuzz
