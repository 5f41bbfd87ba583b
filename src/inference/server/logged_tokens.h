#pragma once
// Tokens with their log-probabilities in few allocations: 16 bytes for a token and 12 for each of its most
// likely ids.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "inference/sampler.h"

namespace hero {

class LoggedTokens {
 public:
  /// Without log-probabilities: the first token of a prompt.
  void add(int64_t id, const std::optional<TokenLogprobs>& logprobs) {
    Token token{.id = static_cast<int32_t>(id)};
    if (logprobs) {
      token.num_top = static_cast<int32_t>(logprobs->top.size());
      token.logprob = logprobs->chosen;
      for (const auto& [top_id, logprob] : logprobs->top) {
        top_ids_.push_back(static_cast<int32_t>(top_id));
        top_logprobs_.push_back(logprob);
      }
    }
    tokens_.push_back(token);
  }
  void append(LoggedTokens other) {
    if (empty()) {
      *this = std::move(other);
      return;
    }
    tokens_.insert(tokens_.end(), other.tokens_.begin(), other.tokens_.end());
    top_ids_.insert(top_ids_.end(), other.top_ids_.begin(), other.top_ids_.end());
    top_logprobs_.insert(top_logprobs_.end(), other.top_logprobs_.begin(), other.top_logprobs_.end());
  }
  size_t size() const { return tokens_.size(); }
  bool empty() const { return tokens_.empty(); }

  /// Calls visit(id, logprob or nullopt, the most likely ids, their logprobs) for every token in order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    size_t begin = 0;
    for (const auto& token : tokens_) {
      const auto count = static_cast<size_t>(std::max(token.num_top, 0));
      visit(int64_t{token.id}, token.num_top < 0 ? std::nullopt : std::optional(token.logprob),
            std::span(top_ids_).subspan(begin, count), std::span(top_logprobs_).subspan(begin, count));
      begin += count;
    }
  }

 private:
  struct Token {
    int32_t id, num_top = -1;  // -1: no log-probabilities
    double logprob = 0;
  };
  std::vector<Token> tokens_;
  std::vector<int32_t> top_ids_;  // of all tokens
  std::vector<double> top_logprobs_;
};

}  // namespace hero
