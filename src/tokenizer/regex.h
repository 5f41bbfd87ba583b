// Regular expressions of tokenizer.json files, run by PCRE2's compiler. Its Unicode version decides what a
// letter is: 14.0 in PCRE2 10.42, where tokenizers 0.23 has 16.0.
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
  /// `pattern` in Oniguruma's syntax; `name` stands for it in messages. UserError when it cannot be used.
  Regex(std::string_view pattern, const std::string& name);

  /// The [begin, end) of the matches in `text` (valid UTF-8) from left to right, appended: as Oniguruma's
  /// find_iter gives them, which leaves out empty matches right behind a match. Thread-safe.
  void find(std::string_view text, std::vector<std::pair<std::size_t, std::size_t>>& matches) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

}  // namespace hero
