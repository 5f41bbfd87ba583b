#pragma once
#include <string>
#include <string_view>

namespace hero {

/// A regular expression in Oniguruma's Ruby syntax, which tokenizer.json files use, as a PCRE2 pattern (for
/// UTF mode) that matches the same. What the two understand differently is written out: \s is White_Space
/// (PCRE2's has U+180E too), \d is Nd, \w is Alphabetic, M, Nd and Pc, \p{Han} is the script (not its
/// extensions), ^ and $ are of lines. `name` stands for the pattern in messages. UserError for what has no
/// exact translation: among others back references, nested classes, && in classes, and inside (?i: ) anything
/// but ASCII.
std::string pcre2_pattern(std::string_view pattern, const std::string& name);

}  // namespace hero
