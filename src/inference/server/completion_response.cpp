#include "inference/server/completion_response.h"

#include <utility>

#include "inference/server/api_json.h"
#include "inference/server/token_text.h"

namespace hero {

using nlohmann::ordered_json;

CompletionResponse::CompletionResponse(const CompletionRequest& request,
                                       const std::vector<std::vector<int64_t>>& prompts,
                                       const Tokenizer& tokenizer, std::string model)
    : GenerationResponse({"cmpl", "text_completion", "text_completion"}, request, prompts, tokenizer,
                         std::move(model)) {
  if (!request.echo) return;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto* text = std::get_if<std::string>(&request.prompts[i]);
    echoed_prompts_.push_back(text ? *text : decode_text(tokenizer, prompts[i]));
  }
}

bool CompletionResponse::has_output(const Choice& choice) const {
  return (!echoed_prompts_.empty() && !choice.begun) || GenerationResponse::has_output(choice);
}

std::string CompletionResponse::take_logprobs(Choice& choice) {
  LogprobsJson logprobs(choice.text_offset);
  if (const auto prompt = std::exchange(choice.output.prompt, nullptr)) {
    if (last_prompt_ != prompt) {
      last_prompt_ = prompt;
      last_prompt_json_ = LogprobsJson();
      last_prompt_json_.add(*prompt, tokenizer_);
      last_prompt_json_.end_prompt();
    }
    logprobs = last_prompt_json_;
  }
  logprobs.add(std::exchange(choice.output.tokens, {}), tokenizer_);
  choice.text_offset = logprobs.text_offset();
  return logprobs.object();
}

std::string CompletionResponse::take_choice(size_t sequence, bool /*chunk*/) {
  auto& choice = choices_[sequence];
  std::string text = std::exchange(choice.output.text, {});
  if (!std::exchange(choice.begun, true) && !echoed_prompts_.empty())
    text.insert(0, echoed_prompts_[sequence / n_]);
  const std::string logprobs = logprobs_ ? take_logprobs(choice) : "null";
  const char* const reason = choice.output.finish_reason;
  return "{\"text\":" + json_line(text) + ",\"index\":" + std::to_string(sequence) +
         ",\"logprobs\":" + logprobs +
         ",\"finish_reason\":" + json_line(reason ? ordered_json(reason) : ordered_json()) + "}";
}

}  // namespace hero
