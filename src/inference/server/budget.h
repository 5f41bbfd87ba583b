#pragma once
// What requests hold from their arrival until their response has been sent, limited per request and for all
// requests together. Costs are estimated before the work starts.
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "inference/server/completion_request.h"

namespace hero {

struct RequestCost {
  int64_t bytes = 0;   ///< text of the prompts and estimated response
  int64_t tokens = 0;  ///< of the prompts, and new tokens of all completions
};

struct PromptSize {
  int64_t tokens = 0;
  int64_t echoed_bytes = 0;  ///< text as JSON; 0 without echo
};

/// Size of `text` in a JSON string, without the quotes.
int64_t escaped_size(std::string_view text);

/// Bytes of the text prompts.
int64_t text_bytes(const CompletionRequest& request);

/// Cost of a request with at most `max_tokens` new tokens per completion. The estimated size of a response
/// with log-probabilities is up to a third larger than the response.
RequestCost completion_cost(const CompletionRequest& request, const std::vector<PromptSize>& prompts,
                            int64_t max_tokens);

/// The same for a chat completion with a prompt of `prompt_tokens`, whose log-probabilities have another
/// form.
RequestCost chat_cost(const CompletionRequest& request, int64_t prompt_tokens, int64_t max_tokens);

/// Thread-safe.
class Budget {
 public:
  struct Limits {
    RequestCost request{.bytes = 64 << 20, .tokens = 1 << 20};
    RequestCost total{.bytes = 256 << 20, .tokens = 4 << 20};
  };
  explicit Budget(const Limits& limits) : limits_(limits) {}

  /// Holds `cost` until the result is destroyed, which the budget must outlive. ApiError 400 if it exceeds
  /// the limit of a request, 503 if other requests hold too much.
  std::shared_ptr<void> reserve(const RequestCost& cost);

 private:
  const Limits limits_;
  std::mutex mutex_;
  RequestCost held_;
};

}  // namespace hero
