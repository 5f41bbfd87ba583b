#pragma once
// OpenAI's text_completion objects: one for a whole answer, or one for everything new about a text.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "inference/server/answer.h"
#include "inference/server/completion_request.h"
#include "tokenizer/tokenizer.h"

namespace hero {

/// JSON in one line; what is no UTF-8 becomes U+FFFD.
std::string json_line(const nlohmann::ordered_json& value);

/// A token as a word of its own: its text, "bytes:\xe4\xb8" for parts of characters, "token_id:7" for an id
/// without text.
std::string token_word(const Tokenizer& tokenizer, int64_t id);

/// The text of ids: specials are invisible in it.
std::string text_of(const Tokenizer& tokenizer, const std::vector<int64_t>& ids);

class CompletionResponse {
 public:
  /// `prompts`: ids of request.prompts. The tokenizer must outlive the object.
  CompletionResponse(const CompletionRequest& request, const std::vector<std::vector<int64_t>>& prompts,
                     const Tokenizer& tokenizer, std::string model);

  /// Adds what is new.
  void add(const Event& event);
  /// The object with all that was added.
  std::string whole();
  /// The object with what was added to a text since the last call; "" for nothing.
  std::string chunk(size_t text);
  /// The last object of a stream that asked for it: no choices, the count of tokens.
  std::string usage_chunk() const;

 private:
  struct Choice {
    std::string text;
    std::vector<LoggedToken> tokens;
    const char* finish = nullptr;
    bool begun = false;
    int64_t characters = 0;  // of earlier tokens
  };
  nlohmann::ordered_json head() const;
  nlohmann::ordered_json usage() const;
  nlohmann::ordered_json take_choice(size_t text);
  nlohmann::ordered_json take_logprobs(Choice& choice) const;

  const Tokenizer& tokenizer_;
  std::string id_, model_;
  int64_t created_;
  size_t n_;
  bool logs_, counts_in_chunks_;
  std::vector<std::string> echoed_;  // by prompt; empty without echo
  std::vector<Choice> choices_;
  int64_t prompt_tokens_ = 0, made_ = 0;
};

}  // namespace hero
