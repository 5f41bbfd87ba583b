#include "inference/server/chat_response.h"

#include <utility>

#include "inference/server/api_json.h"
#include "inference/server/logprobs_json.h"

namespace hero {

using nlohmann::ordered_json;

ChatResponse::ChatResponse(const CompletionRequest& request, const std::vector<std::vector<int64_t>>& prompts,
                           const Tokenizer& tokenizer, std::string model)
    : GenerationResponse({"chatcmpl", "chat.completion", "chat.completion.chunk"}, request, prompts,
                         tokenizer, std::move(model)) {}

std::string ChatResponse::take_choice(size_t sequence, bool chunk) {
  auto& choice = choices_[sequence];
  const std::string text = std::exchange(choice.output.text, {});
  ordered_json message = ordered_json::object();
  if (!std::exchange(choice.begun, true)) message["role"] = "assistant";
  if (!chunk || !text.empty()) message["content"] = text;
  const std::string logprobs =
      logprobs_ ? chat_logprobs_json(std::exchange(choice.output.tokens, {}), tokenizer_) : "null";
  const char* const reason = choice.output.finish_reason;
  return "{\"index\":" + std::to_string(sequence) + (chunk ? ",\"delta\":" : ",\"message\":") +
         json_line(message) + ",\"logprobs\":" + logprobs +
         ",\"finish_reason\":" + json_line(reason ? ordered_json(reason) : ordered_json()) + "}";
}

}  // namespace hero
