// Text through tokenizers like those of common models. The first byte selects the tokenizer.
#include <nlohmann/json.hpp>

#include "fuzz/checks.h"
#include "fuzz/targets.h"
#include "io/utf8.h"
#include "tokenizer/sentencepiece_bytes.h"
#include "tokenizer/small_tokenizer.h"

namespace hero::fuzz {

namespace text_fuzz {

using nlohmann::json;

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

json split(const std::string& regex, const std::string& behavior = "Isolated") {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", behavior}, {"invert", false}};
}

// The pre-tokenizers `steps`, then ByteLevel without its own pattern.
Tokenizer byte_level(json steps, const json& normalizer = nullptr, bool ignore_merges = false) {
  json tokenizer = small_tokenizer_json();
  json& bytes = tokenizer["pre_tokenizer"];
  bytes["use_regex"] = false;
  steps.push_back(bytes);
  bytes = {{"type", "Sequence"}, {"pretokenizers", steps}};
  tokenizer["normalizer"] = normalizer;
  tokenizer["model"]["ignore_merges"] = ignore_merges;
  return {tokenizer.dump(), kFile};
}

Tokenizer with_added_tokens() {
  json tokenizer = small_tokenizer_json();
  tokenizer["normalizer"] = {{"type", "Sequence"},
                             {"normalizers", {{{"type", "NFKD"}}, {{"type", "Lowercase"}}}}};
  const int first = tokenizer["added_tokens"][0]["id"].get<int>() + 1;
  const char* const kFlags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
  for (int i = 0; i < 5; ++i) {
    json token = added_token(first + i, std::string("<") + kFlags[i] + ">");
    token[kFlags[i]] = true;
    tokenizer["added_tokens"].push_back(token);
  }
  return {tokenizer.dump(), kFile};
}

std::vector<Tokenizer> make_tokenizers() {
  using namespace sentencepiece_bytes;
  std::vector<Tokenizer> all;
  all.emplace_back(small_tokenizer_json().dump(), kFile);  // GPT-2
  all.push_back(byte_level(json::array({split(kLlama3)}), {{"type", "NFC"}}, true));
  all.push_back(byte_level(
      json::array({split(R"(\p{N}{1,3})"), split("[一-龥぀-ゟ゠-ヿ]+"), split(kDeepseek3)})));
  const json digits = {{"type", "Digits"}, {"individual_digits", true}},
             punctuation = {{"type", "Punctuation"}, {"behavior", "MergedWithNext"}};
  all.push_back(
      byte_level(json::array({digits, punctuation, split(R"(\s)", "Removed")}), {{"type", "NFKC"}}));
  all.push_back(with_added_tokens());
  const std::string space(kSpaceSymbol);
  const std::string words = piece(space, Type::normal, -1) + piece("a", Type::normal, -2) +
                            piece(space + space, Type::normal, -3) + piece(space + "a", Type::normal, -4) +
                            piece("\n", Type::normal, -5) + piece("\xC3\xA9", Type::normal, -6);
  all.emplace_back(byte_fallback_bpe(words), kFile);
  all.emplace_back(model_of(words + piece("<user>", Type::user_defined), SentencePieceModel::Kind::unigram),
                   kFile);
  return all;
}

}  // namespace text_fuzz

bool read_text(std::string_view bytes) {
  static const std::vector<Tokenizer> tokenizers = text_fuzz::make_tokenizers();
  const size_t chosen = bytes.empty() ? 0 : static_cast<unsigned char>(bytes[0]) % tokenizers.size();
  const std::string text(bytes.substr(std::min<size_t>(1, bytes.size())));
  if (find_invalid_utf8(text) != std::string::npos) return false;
  return accepted(text, [&](std::string_view copy) { check_tokenizer(tokenizers[chosen], copy); });
}

}  // namespace hero::fuzz
