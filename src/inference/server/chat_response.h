#pragma once
// OpenAI's chat.completion and chat.completion.chunk objects.
#include "inference/server/generation_response.h"

namespace hero {

class ChatResponse : public GenerationResponse {
 public:
  /// As GenerationResponse.
  ChatResponse(const CompletionRequest& request, const std::vector<std::vector<int64_t>>& prompts,
               const Tokenizer& tokenizer, std::string model);

 private:
  std::string take_choice(size_t sequence, bool chunk) override;
};

}  // namespace hero
