#include "tokenizer/text_normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/utf8.h>

#include <algorithm>

#include "io/error.h"
#include "tokenizer/icu_size.h"

namespace hero {

namespace {

void check(UErrorCode status) {
  if (U_FAILURE(status)) throw RunError(std::string("ICU: normalization failed: ") + u_errorName(status));
}

const icu::Normalizer2& icu_normalizer(TextNormalizer::Form form) {
  using Form = TextNormalizer::Form;
  UErrorCode status = U_ZERO_ERROR;
  const auto* const found = form == Form::nfc    ? icu::Normalizer2::getNFCInstance(status)
                            : form == Form::nfd  ? icu::Normalizer2::getNFDInstance(status)
                            : form == Form::nfkc ? icu::Normalizer2::getNFKCInstance(status)
                                                 : icu::Normalizer2::getNFKDInstance(status);
  check(status);
  return *found;
}

const icu::UnicodeSet& unicode_9() {
  static const icu::UnicodeSet set = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet result(icu::UnicodeString("[:age=9.0:]"), status);
    check(status);
    result.freeze();
    return result;
  }();
  return set;
}

void append(std::string& text, UChar32 c) {
  char bytes[U8_MAX_LENGTH];
  int32_t length = 0;
  U8_APPEND_UNSAFE(bytes, length, c);
  text.append(bytes, static_cast<std::size_t>(length));
}

// Per character, without locale or context rules. Only U+0130 maps to two characters.
std::string lowercase(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    UChar32 c;
    U8_NEXT_UNSAFE(text.data(), i, c);
    append(lower, u_tolower(c));
    if (c == 0x130) append(lower, 0x307);
  }
  return lower;
}

}  // namespace

struct TextNormalizer::Step {
  explicit Step(Form form) : form(form), normal(icu_normalizer(form), unicode_9()) {}
  Form form;
  icu::FilteredNormalizer2 normal;  // unused for lowercase
};

TextNormalizer::TextNormalizer(std::vector<Form> forms) {
  for (const Form form : forms) steps_.push_back(std::make_unique<Step>(form));
}

TextNormalizer::~TextNormalizer() = default;

std::string_view TextNormalizer::apply(std::string_view text, std::string& buffer) const {
  for (const auto& step : steps_) {
    if (step->form == Form::lowercase) {
      buffer = lowercase(text);
      text = buffer;
      continue;
    }
    const bool ascii =
        std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
    if (ascii) continue;
    UErrorCode status = U_ZERO_ERROR;
    std::string normal;
    normal.reserve(text.size());
    icu::StringByteSink<std::string> sink(&normal);
    step->normal.normalizeUTF8(0, icu::StringPiece(text.data(), icu_size(text)), sink, nullptr, status);
    check(status);
    buffer = std::move(normal);
    text = buffer;
  }
  return text;
}

}  // namespace hero
