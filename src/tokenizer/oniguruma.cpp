#include "tokenizer/oniguruma.h"

#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "io/error.h"
#include "io/one_line.h"

namespace hero {

namespace {

// Written for use inside a character class.
constexpr const char* kSpace =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{"
    "3000}";
constexpr const char* kNonSpace =
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}"
    "\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{D7FF}"
    "\\x{E000}-\\x{10FFFF}";
// Oniguruma includes Latin-1 superscripts and fractions.
constexpr const char* kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";

constexpr std::array<std::string_view, 37> kCategories = {
    "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",
    "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi",
    "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};

bool is_category(std::string_view name) {
  for (const auto category : kCategories) {
    if (category == name) return true;
  }
  return false;
}

class PatternTranslator {
 public:
  PatternTranslator(std::string_view pattern, const std::string& name) : pattern_(pattern), name_(name) {}

  std::string run() {
    ignores_case_.push_back(false);
    if (accept("(?i)")) {  // at the start, it applies to the whole pattern
      out_ += "(?i)";
      ignores_case_.back() = true;
    }
    while (at_ < pattern_.size()) item();
    return std::move(out_);
  }

 private:
  [[noreturn]] void reject(std::size_t at, const std::string& found) const {
    throw UserError(name_ + ": character " + std::to_string(at) + ": found " + one_line(found) + " in \"" +
                    one_line(std::string(pattern_), 200) + "\", which has no exact translation to PCRE2");
  }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  bool accept(std::string_view words) {
    if (!pattern_.substr(at_).starts_with(words)) return false;
    at_ += words.size();
    return true;
  }
  bool ignores_case() const { return ignores_case_.back(); }

  void item() {
    const char c = peek();
    if (c != '\\' && c != '(' && !std::isalpha(static_cast<unsigned char>(c))) previous_letter_ = '\0';
    switch (c) {
      case '\\':
        return escape(false);
      case '[':
        return character_class();
      case '(':
        return open_group();
      case ')':
        if (ignores_case_.size() == 1) reject(at_, "\")\" without \"(\"");
        ignores_case_.pop_back();
        break;
      case '^':
      case '$':
        ++at_;
        out_ += std::string("(?m:") + c + ")";
        return;
      case '.':
        ++at_;
        out_ += "[^\\n]";
        return;
      case '{':
        return interval();
      default:
        return literal();
    }
    ++at_;
    out_ += c;
  }

  // A literal character, or an operator with the same syntax in both.
  void literal() {
    const char c = peek();
    if (ignores_case()) {
      if (static_cast<unsigned char>(c) >= 0x80) reject(at_, "a character outside ASCII inside (?i: )");
      // Oniguruma also matches single characters that fold to two letters: U+FB00 for "ff", U+00DF for "ss".
      const char lower = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      const std::string pair = {previous_letter_, lower};
      for (const char* const folded : {"ff", "fi", "fl", "ss", "st"}) {
        if (pair == folded) reject(at_ - 1, "\"" + pair + "\" inside (?i: )");
      }
      previous_letter_ = std::isalpha(static_cast<unsigned char>(lower)) ? lower : '\0';
    }
    ++at_;
    out_ += c;
  }

  void open_group() {
    previous_letter_ = '\0';
    if (pattern_.substr(at_).starts_with("(*")) reject(at_, "\"(*\"");
    bool ignores = ignores_case();
    for (const char* const head : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (!accept(head)) continue;
      out_ += head;
      ignores = ignores || std::string_view(head) == "(?i:";
      ignores_case_.push_back(ignores);
      return;
    }
    if (peek(1) == '?') reject(at_, "the group \"" + std::string(pattern_.substr(at_, 4)) + "\"");
    ++at_;
    out_ += "(?:";  // captures are not used
    ignores_case_.push_back(ignores);
  }

  // {n}, {n,}, {,m}, {n,m}; any other "{" is literal. Ruby parses {n}? as (?:{n})? and {n,m}+ as
  // (?:{n,m})+, unlike PCRE2.
  void interval() {
    std::size_t end = at_ + 1;
    const auto digits = [&] {
      const std::size_t begin = end;
      while (end < pattern_.size() && std::isdigit(static_cast<unsigned char>(pattern_[end]))) ++end;
      return std::string(pattern_.substr(begin, end - begin));
    };
    const std::string least = digits();
    const bool comma = end < pattern_.size() && pattern_[end] == ',';
    if (comma) ++end;
    const std::string most = comma ? digits() : "";
    if (end >= pattern_.size() || pattern_[end] != '}' || (least.empty() && most.empty())) {
      ++at_;
      out_ += "\\{";
      return;
    }
    const std::size_t begin = std::exchange(at_, end + 1);
    if (peek() == '+' || (peek() == '?' && !comma)) {
      reject(begin, "\"" + std::string(pattern_.substr(begin, at_ + 1 - begin)) + "\"");
    }
    out_ += "{" + (least.empty() ? "0" : least) + (comma ? "," : "") + most + "}";
  }

  void character_class() {
    previous_letter_ = '\0';
    const std::size_t begin = at_++;
    out_ += '[';
    if (accept("^")) out_ += '^';
    if (peek() == ']') reject(begin, "a class that begins with \"]\"");
    while (peek() != ']') {
      if (at_ >= pattern_.size()) reject(begin, "a class without \"]\"");
      if (peek() == '[') reject(at_, "\"[\" inside a class");
      if (peek() == '&' && peek(1) == '&') reject(at_, "\"&&\" inside a class");
      if (peek() == '\\') {
        escape(true);
        continue;
      }
      if (ignores_case() && static_cast<unsigned char>(peek()) >= 0x80)
        reject(at_, "a character outside ASCII inside (?i: )");
      out_ += pattern_[at_++];
    }
    ++at_;
    out_ += ']';
  }

  void escape(bool in_class) {
    const std::size_t begin = at_;
    const char c = peek(1);
    const auto reject_escape = [&] { reject(begin, "\"\\" + std::string(1, c) + "\""); };
    const auto write = [&](const std::string& members, bool negated) {
      if (ignores_case()) reject_escape();
      if (in_class && negated) reject_escape();
      out_ += in_class ? members : std::string(negated ? "[^" : "[") + members + "]";
    };
    const auto bracketed = [](const char* begin) { return std::string(begin).append(kWord).append("]"); };
    const std::string word = bracketed("["), no_word = bracketed("[^");
    at_ += 2;
    switch (c) {
      case 's':
        out_ += in_class ? kSpace : std::string("[") + kSpace + "]";
        return;
      case 'S':
        out_ += in_class ? kNonSpace : std::string("[") + kNonSpace + "]";
        return;
      case 'd':
        return write("\\p{Nd}", false);
      case 'D':
        return write("\\P{Nd}", false);
      case 'w':
        return write(kWord, false);
      case 'W':
        return write(kWord, true);
      case 'b':
        if (in_class) reject_escape();
        out_ += "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))";
        return;
      case 'B':
        if (in_class) reject_escape();
        out_ += "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))";
        return;
      case 'p':
      case 'P':
        return property(begin, c);
      case 'x':
      case 'u':
        return code_point(begin, c);
      case 'v':
        out_ += "\\x{B}";
        return;
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        break;
      case 'A':
      case 'z':
      case 'Z':
        if (in_class) reject_escape();
        break;
      default:
        if (c == '\0' || std::isalnum(static_cast<unsigned char>(c)) || static_cast<unsigned char>(c) >= 0x80)
          reject_escape();
    }
    out_ += std::string("\\") + c;
  }

  void property(std::size_t begin, char letter) {
    const std::size_t end = pattern_.find('}', at_);
    if (peek() != '{' || end == pattern_.npos) reject(begin, "a property without {name}");
    std::string name(pattern_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    bool negated = letter == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.erase(0, 1);
    }
    if (ignores_case()) reject(begin, "a property inside (?i: )");
    if (!is_category(name)) name = "sc:" + name;
    out_ += std::string(negated ? "\\P{" : "\\p{") + name + "}";
  }

  void code_point(std::size_t begin, char letter) {
    std::string digits;
    const auto take = [&](std::size_t most) {
      while (digits.size() < most && std::isxdigit(static_cast<unsigned char>(peek())))
        digits += pattern_[at_++];
    };
    if (letter == 'x' && accept("{")) {
      take(8);
      if (!accept("}")) digits.clear();
    } else {
      take(letter == 'u' ? 4 : 2);
      if (letter == 'u' && digits.size() != 4) digits.clear();
      if (letter == 'x' && digits.size() == 2 && digits[0] >= '8') digits.clear();  // a byte, not a character
    }
    if (digits.empty() || ignores_case()) reject(begin, "\"\\" + std::string(1, letter) + "\"");
    out_ += "\\x{" + digits + "}";
  }

  std::string_view pattern_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::string out_;
  std::vector<bool> ignores_case_;  // of the open groups
  char previous_letter_ = '\0';     // inside (?i: ), lowercase
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern, const std::string& name) {
  return PatternTranslator(pattern, name).run();
}

}  // namespace hero
