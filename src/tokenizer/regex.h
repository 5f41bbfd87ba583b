// Regular expressions of tokenizer.json files, compiled by PCRE2's JIT. PCRE2 determines the Unicode version:
// 14.0 in PCRE2 10.42, but 16.0 in tokenizers 0.23.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct pcre2_real_code_8;

namespace hero {

class Regex {
 public:
  /// `pattern`: Oniguruma syntax; `name`: its name in messages. UserError for unsupported patterns.
  Regex(std::string_view pattern, const std::string& name);

  /// Appends [begin, end) of the matches in `text` (valid UTF-8) from left to right. Like Oniguruma's
  /// find_iter, skips empty matches directly after a match. Thread-safe. UserError with the pattern if it
  /// backtracks more than a limit that is linear in the size of the text.
  void find(std::string_view text, std::vector<std::pair<std::size_t, std::size_t>>& matches) const;

 private:
  struct Deleter {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, Deleter> code_;
  std::string pattern_, name_;  // for messages
};

}  // namespace hero
