#include "inference/server/logprobs_json.h"

#include <map>
#include <string_view>

#include "inference/server/api_json.h"
#include "inference/server/token_text.h"

namespace hero {
namespace {

constexpr double kMinLogprob = -9999;  // replaces -inf, which JSON lacks

double finite(double logprob) { return logprob > kMinLogprob ? logprob : kMinLogprob; }

std::string array_of(std::string_view elements) {
  if (elements.ends_with(',')) elements.remove_suffix(1);
  return "[" + std::string(elements) + "]";
}

// "token", "logprob" and "bytes", which is null for ids without text, of an object without its end.
std::string chat_token(const Tokenizer& tokenizer, int64_t id, double logprob) {
  std::string numbers;
  for (const char c : token_bytes(tokenizer, id))
    numbers += std::to_string(static_cast<unsigned char>(c)) + ",";
  return "{\"token\":" + json_line(token_string(tokenizer, id)) +
         ",\"logprob\":" + json_line(finite(logprob)) +
         ",\"bytes\":" + (numbers.empty() ? "null" : array_of(numbers));
}

}  // namespace

std::string chat_logprobs_json(const LoggedTokens& tokens, const Tokenizer& tokenizer) {
  std::string content;
  tokens.for_each([&](int64_t id, std::optional<double> logprob, std::span<const int32_t> top_ids,
                      std::span<const double> top_logprobs) {
    std::string top;
    for (size_t i = 0; i < top_ids.size(); ++i)
      top += chat_token(tokenizer, top_ids[i], top_logprobs[i]) + "},";
    content += chat_token(tokenizer, id, logprob.value_or(0)) + ",\"top_logprobs\":" + array_of(top) + "},";
  });
  return "{\"content\":" + array_of(content) + "}";
}

void LogprobsJson::add(const LoggedTokens& tokens, const Tokenizer& tokenizer) {
  tokens.for_each([&](int64_t id, std::optional<double> logprob, std::span<const int32_t> top_ids,
                      std::span<const double> top_logprobs) {
    const std::string string = token_string(tokenizer, id);
    text_offsets_ += std::to_string(text_offset_.add(token_bytes(tokenizer, id))) + ",";
    tokens_ += json_line(string) + ",";
    if (!logprob) {
      logprobs_ += "null,";
      top_logprobs_ += "null,";
      return;
    }
    // Several ids may have the same string: emplace keeps the most likely.
    std::map<std::string, double> top;
    for (size_t i = 0; i < top_ids.size(); ++i) {
      top.emplace(token_string(tokenizer, top_ids[i]), finite(top_logprobs[i]));
    }
    top.emplace(string, finite(*logprob));
    logprobs_ += json_line(finite(*logprob)) + ",";
    top_logprobs_ += json_line(top) + ",";
  });
}

std::string LogprobsJson::object() const {
  return "{\"tokens\":" + array_of(tokens_) + ",\"token_logprobs\":" + array_of(logprobs_) +
         ",\"top_logprobs\":" + array_of(top_logprobs_) + ",\"text_offset\":" + array_of(text_offsets_) + "}";
}

}  // namespace hero
