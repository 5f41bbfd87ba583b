#pragma once
// OpenAI's text_completion objects.
#include <memory>
#include <string>
#include <vector>

#include "inference/server/generation_response.h"
#include "inference/server/logprobs_json.h"

namespace hero {

class CompletionResponse : public GenerationResponse {
 public:
  /// As GenerationResponse.
  CompletionResponse(const CompletionRequest& request, const std::vector<std::vector<int64_t>>& prompts,
                     const Tokenizer& tokenizer, std::string model);

 private:
  bool has_output(const Choice& choice) const override;
  std::string take_choice(size_t sequence, bool chunk) override;
  std::string take_logprobs(Choice& choice);

  std::vector<std::string> echoed_prompts_;  // empty without echo
  // The choices of a prompt have the same log-probabilities for it.
  std::shared_ptr<const LoggedTokens> last_prompt_;
  LogprobsJson last_prompt_json_;
};

}  // namespace hero
