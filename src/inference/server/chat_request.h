#pragma once
// Parses and validates the body of POST /v1/chat/completions (OpenAI's chat completions API).
#include <nlohmann/json.hpp>

#include "inference/server/completion_request.h"

namespace hero {

struct ChatRequest {
  nlohmann::json messages;       ///< objects with strings: role, content, and name and tool_call_id if given
  int64_t message_bytes = 0;     ///< of their texts
  CompletionRequest completion;  ///< without prompts
};

/// ApiError 400 as parse_completion_request. Text parts of a content are joined by line feeds.
ChatRequest parse_chat_request(const nlohmann::json& body, const RequestLimits& limits);

}  // namespace hero
