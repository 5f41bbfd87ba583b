#pragma once
// Prompts of a request as token ids, validated against the model.
#include <cstdint>
#include <vector>

#include "inference/server/completion_request.h"
#include "inference/server/request_output.h"
#include "tokenizer/tokenizer.h"

namespace hero {

class PromptEncoder {
 public:
  /// `vocabulary`, `positions`: of the model. The tokenizer must outlive the object.
  PromptEncoder(const Tokenizer& tokenizer, int64_t vocabulary, int64_t positions);

  /// The ids of every prompt. ApiError 400 if a prompt with request.max_tokens has more tokens than
  /// positions, for a long text before it is tokenized; 504 after `deadline`.
  std::vector<std::vector<int64_t>> encode(const CompletionRequest& request,
                                           Clock::time_point deadline) const;

  /// The ids of a conversation's text, which leave room for `max_tokens`. ApiError as above.
  std::vector<int64_t> encode_conversation(const std::string& text, int64_t max_tokens) const;

  int64_t positions() const { return positions_; }
  /// A longer text has more tokens than the model has positions.
  int64_t max_text_bytes() const { return positions_ * longest_token_; }

 private:
  std::vector<int64_t> encode(const Prompt& prompt, const std::string& name) const;
  void check_length(const std::vector<int64_t>& ids, int64_t max_tokens, const std::string& name,
                    const std::string& param) const;

  const Tokenizer& tokenizer_;
  const int64_t vocabulary_, positions_, longest_token_;
};

}  // namespace hero
