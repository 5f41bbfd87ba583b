#include "inference/server/budget.h"

namespace hero {
namespace {

// Bytes of a response. The log-probability of a prompt token, in JSON with 17 digits, was measured to need 55
// bytes and twice its text, and 29 for each of the most likely tokens.
constexpr int64_t kResponseBytes = 256;
constexpr int64_t kChoiceBytes = 96;
constexpr int64_t kChunkBytes = 256;  // the object of a streamed token
constexpr int64_t kTextBytes = 8;     // of a new token
constexpr int64_t kLogprobBytes = 64;
constexpr int64_t kTopLogprobBytes = 36;
// In a chat completion a token is an object, which also lists its bytes as numbers.
constexpr int64_t kChatLogprobBytes = 96;
constexpr int64_t kChatTopLogprobBytes = 100;
constexpr int64_t kChatTextCopies = 6;  // content, token, and up to four characters for each byte
constexpr int64_t kIdBytes = 8;

ApiError request_too_large(int64_t found, const char* unit, int64_t limit, const char* option) {
  return {400,
          "body: found a request of " + std::to_string(found) + " " + unit + ", expected at most " +
              std::to_string(limit) + " (" + option + ")",
          "", "request_too_large"};
}

ApiError server_busy(int64_t found, int64_t held, const char* unit, int64_t limit, const char* option) {
  return {503,
          "found a request of " + std::to_string(found) + " " + unit + " besides " + std::to_string(held) +
              " of others, expected at most " + std::to_string(limit) + " in total (" + option +
              "): try again later",
          "", "server_busy"};
}

}  // namespace

int64_t escaped_size(std::string_view text) {
  int64_t size = 0;
  for (const char c : text) {
    const bool control = static_cast<unsigned char>(c) < 0x20;
    size += control ? 6 : c == '"' || c == '\\' ? 2 : 1;
  }
  return size;
}

int64_t text_bytes(const CompletionRequest& request) {
  int64_t bytes = 0;
  for (const auto& prompt : request.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) bytes += std::ssize(*text);
  }
  return bytes;
}

RequestCost completion_cost(const CompletionRequest& request, const std::vector<PromptSize>& prompts,
                            int64_t max_tokens) {
  const bool logprobs = request.logprobs >= 0, scored = request.echo && logprobs;
  const int64_t logprob_bytes = logprobs ? kLogprobBytes + request.logprobs * kTopLogprobBytes : 0;
  // A token's text is in "text" and, with log-probabilities, in "tokens" and "top_logprobs".
  const int64_t copies = logprobs ? 3 : 1;
  const int64_t new_token_bytes = copies * kTextBytes + logprob_bytes + (request.stream ? kChunkBytes : 0);
  RequestCost cost{.bytes = text_bytes(request) + kResponseBytes};
  for (const auto& prompt : prompts) {
    cost.tokens += prompt.tokens * (scored ? request.n : 1) + max_tokens * request.n;
    const int64_t echoed = copies * prompt.echoed_bytes + (scored ? prompt.tokens * logprob_bytes : 0);
    cost.bytes += request.n * (kChoiceBytes + echoed + max_tokens * new_token_bytes);
  }
  return cost;
}

RequestCost chat_cost(const CompletionRequest& request, int64_t prompt_tokens, int64_t max_tokens) {
  const bool logprobs = request.logprobs >= 0;
  const int64_t token_bytes =
      (logprobs ? kChatTextCopies * kTextBytes + kChatLogprobBytes + request.logprobs * kChatTopLogprobBytes
                : kTextBytes) +
      (request.stream ? kChunkBytes : 0);
  return {.bytes = kIdBytes * prompt_tokens + kResponseBytes +
                   request.n * (kChoiceBytes + max_tokens * token_bytes),
          .tokens = prompt_tokens + max_tokens * request.n};
}

std::shared_ptr<void> Budget::reserve(const RequestCost& cost) {
  if (cost.bytes > limits_.request.bytes) {
    throw request_too_large(cost.bytes, "bytes (prompts and estimated response)", limits_.request.bytes,
                            "--max-response");
  }
  if (cost.tokens > limits_.request.tokens) {
    throw request_too_large(cost.tokens, "tokens (prompts and new tokens of all completions)",
                            limits_.request.tokens, "--max-request-tokens");
  }
  const std::lock_guard lock(mutex_);
  if (held_.bytes + cost.bytes > limits_.total.bytes) {
    throw server_busy(cost.bytes, held_.bytes, "bytes", limits_.total.bytes, "--max-pending-response");
  }
  if (held_.tokens + cost.tokens > limits_.total.tokens) {
    throw server_busy(cost.tokens, held_.tokens, "tokens", limits_.total.tokens, "--max-pending-tokens");
  }
  const auto release = [this, cost](void*) {
    const std::lock_guard guard(mutex_);
    held_.bytes -= cost.bytes;
    held_.tokens -= cost.tokens;
  };
  std::shared_ptr<void> handle(this, release);
  held_.bytes += cost.bytes;
  held_.tokens += cost.tokens;
  return handle;
}

}  // namespace hero
