#pragma once
// OpenAI's text_completion objects: the complete response, or chunks for streaming. Outputs are kept as text
// and compact records; the JSON of a choice is made when it is written.
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "inference/server/completion_request.h"
#include "inference/server/logprobs_json.h"
#include "inference/server/request_output.h"
#include "tokenizer/tokenizer.h"

namespace hero {

class CompletionResponse {
 public:
  /// `prompts`: the token ids of request.prompts. The tokenizer must outlive the object.
  CompletionResponse(const CompletionRequest& request, const std::vector<std::vector<int64_t>>& prompts,
                     const Tokenizer& tokenizer, std::string model);

  void add(SequenceOutput output);
  /// Writes the complete response object in parts, once. Returns false as soon as `write` does.
  bool write(const std::function<bool(std::string_view)>& write);
  /// The streaming object with the new output of a sequence since the last call; "" if there is none.
  std::string chunk(size_t sequence);
  /// The last streaming object with include_usage: token counts, no choices.
  std::string usage_chunk() const;

 private:
  struct Choice {
    SequenceOutput output;  // not yet written
    bool prompt_echoed = false;
    int64_t text_offset = 0;  // in characters
  };
  nlohmann::ordered_json header() const;
  nlohmann::ordered_json usage() const;
  std::string take_choice(size_t sequence);
  std::string take_logprobs(Choice& choice);

  const Tokenizer& tokenizer_;
  std::string id_, model_;
  int64_t created_;
  size_t n_;
  bool logprobs_, include_usage_;
  std::vector<std::string> echoed_prompts_;  // empty without echo
  std::vector<Choice> choices_;
  int64_t prompt_tokens_ = 0, completion_tokens_ = 0;
  // The choices of a prompt have the same log-probabilities for it.
  std::shared_ptr<const LoggedTokens> last_prompt_;
  LogprobsJson last_prompt_json_;
};

}  // namespace hero
