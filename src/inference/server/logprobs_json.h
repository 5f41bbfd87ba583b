#pragma once
// The logprobs objects of completions and chat completions.
#include <cstdint>
#include <string>

#include "inference/server/logged_tokens.h"
#include "inference/server/text_stream.h"
#include "tokenizer/tokenizer.h"

namespace hero {

class LogprobsJson {
 public:
  /// `text_offset`: of the first token.
  explicit LogprobsJson(TextOffset text_offset = {}) : text_offset_(std::move(text_offset)) {}

  void add(const LoggedTokens& tokens, const Tokenizer& tokenizer);
  /// The text of the prompt ends here.
  void end_prompt() { text_offset_.flush(); }
  /// Of the next token.
  const TextOffset& text_offset() const { return text_offset_; }
  /// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
  std::string object() const;

 private:
  TextOffset text_offset_;
  // Elements of the four arrays, each followed by a comma.
  std::string tokens_, logprobs_, top_logprobs_, text_offsets_;
};

/// Of a chat completion: {"content": [{"token", "logprob", "bytes", "top_logprobs"}]}.
std::string chat_logprobs_json(const LoggedTokens& tokens, const Tokenizer& tokenizer);

}  // namespace hero
