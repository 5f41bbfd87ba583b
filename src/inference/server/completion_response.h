#pragma once
// OpenAI's text_completion objects: the complete response, or chunks for streaming.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "inference/server/completion_request.h"
#include "inference/server/request_output.h"
#include "tokenizer/tokenizer.h"

namespace hero {

/// Single-line JSON; replaces invalid UTF-8 by U+FFFD.
std::string json_line(const nlohmann::ordered_json& value);

/// The string of a single token: its text, "bytes:\xe4\xb8" for incomplete UTF-8, "token_id:7" for an id
/// without text.
std::string token_string(const Tokenizer& tokenizer, int64_t id);

/// Decodes ids; skips special tokens.
std::string decode_text(const Tokenizer& tokenizer, const std::vector<int64_t>& ids);

class CompletionResponse {
 public:
  /// `prompts`: the token ids of request.prompts. The tokenizer must outlive the object.
  CompletionResponse(const CompletionRequest& request, const std::vector<std::vector<int64_t>>& prompts,
                     const Tokenizer& tokenizer, std::string model);

  void add(const SequenceOutput& output);
  /// The complete response object.
  std::string complete();
  /// The streaming object with the new output of a sequence since the last call; "" if there is none.
  std::string chunk(size_t sequence);
  /// The last streaming object with include_usage: token counts, no choices.
  std::string usage_chunk() const;

 private:
  struct Choice {
    std::string text;
    std::vector<TokenWithLogprobs> tokens;
    const char* finish_reason = nullptr;
    bool started = false;
    int64_t text_offset = 0;  // in characters
  };
  nlohmann::ordered_json header() const;
  nlohmann::ordered_json usage() const;
  nlohmann::ordered_json take_choice(size_t sequence);
  nlohmann::ordered_json take_logprobs(Choice& choice) const;

  const Tokenizer& tokenizer_;
  std::string id_, model_;
  int64_t created_;
  size_t n_;
  bool logprobs_, include_usage_;
  std::vector<std::string> echoed_prompts_;  // empty without echo
  std::vector<Choice> choices_;
  int64_t prompt_tokens_ = 0, completion_tokens_ = 0;
};

}  // namespace hero
