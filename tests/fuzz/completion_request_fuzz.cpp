// Bodies of POST /v1/completions and /v1/chat/completions, and the fields that other endpoints share with
// them.
#include "fuzz/checks.h"
#include "fuzz/targets.h"
#include "inference/server/api_json.h"
#include "inference/server/budget.h"
#include "inference/server/chat_request.h"
#include "inference/server/completion_request.h"
#include "io/json.h"

namespace hero::fuzz {

namespace completion_request_fuzz {

// ApiError 400 with one line, whose JSON is valid.
template <class Parse>
bool accepted_by(Parse parse) {
  try {
    parse();
    return true;
  } catch (const ApiError& error) {
    require(error.status == 400, "a status other than 400");
    check_message(error.what(), "");
    require(parse_json_or_null(error_json(error)).is_object(), "an error that is not JSON");
    return false;
  }
}

}  // namespace completion_request_fuzz

bool read_completion_request(std::string_view bytes) {
  using completion_request_fuzz::accepted_by;
  nlohmann::json body;
  if (!accepted_by([&] { body = parse_body(bytes); })) return false;
  accepted_by([&] { token_ids(body.value("tokens", nlohmann::json()), "tokens"); });
  const RequestLimits limits;
  const bool chat = accepted_by([&] {
    const ChatRequest request = parse_chat_request(body, limits);
    require(!request.messages.empty() && request.message_bytes >= 0, "no message");
    for (const auto& message : request.messages)
      require(message.at("role").is_string() && message.at("content").is_string(), "a message without text");
    const RequestCost cost = chat_cost(request.completion, 10, request.completion.max_tokens.value_or(16));
    require(cost.bytes >= 0 && cost.tokens > 0, "a cost that overflows");
  });
  const bool completion = accepted_by([&] {
    const CompletionRequest request = parse_completion_request(body, limits);
    require(!request.prompts.empty() && request.n >= 1 && request.n <= RequestLimits::n, "no completion");
    require(request.max_tokens.value_or(1) >= 0 && request.max_tokens.value_or(1) <= limits.max_tokens,
            "max_tokens out of range");
    const std::vector<PromptSize> sizes(request.prompts.size(), PromptSize{10, 100});
    const RequestCost cost = completion_cost(request, sizes, request.max_tokens.value_or(16));
    require(cost.bytes >= 0 && cost.tokens > 0 && text_bytes(request) >= 0, "a cost that overflows");
  });
  return chat || completion;
}

}  // namespace hero::fuzz
