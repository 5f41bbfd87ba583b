#pragma once
#include <string>
#include <string_view>

namespace hero {

/// Translates a regular expression from Oniguruma's Ruby syntax, used by tokenizer.json files, to an
/// equivalent PCRE2 pattern (UTF mode). Expands constructs with different semantics: \s is White_Space (PCRE2
/// includes U+180E), \d is Nd, \w is Alphabetic, M, Nd and Pc, \p{Han} is the script (without extensions), ^
/// and $ match at lines. `name`: the pattern's name in messages. UserError for constructs without an exact
/// translation, such as back references, nested classes, && in classes, and non-ASCII inside (?i: ).
std::string pcre2_pattern(std::string_view pattern, const std::string& name);

}  // namespace hero
