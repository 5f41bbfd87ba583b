#pragma once
// A conversation with a model.
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "inference/chat_template.h"
#include "inference/end_of_turn.h"
#include "inference/sampler.h"
#include "model/transformer.h"
#include "tokenizer/tokenizer.h"

namespace hero {

class ChatSession {
 public:
  enum class End { kStop, kLength, kPositions, kInterrupted };

  /// `system`: the first message; "": none. The n-th answer uses sampling.seed + n - 1. The arguments must
  /// outlive the session.
  ChatSession(const Transformer& model, const Tokenizer& tokenizer, ChatTemplate& chat, EndOfTurn end,
              const std::string& system, SamplingParams sampling);

  /// Adds the user's `message`, generates the answer and adds it. Calls `on_text` with its text, as it is
  /// generated, and also between; false ends the answer. UserError, without a change of the conversation, if
  /// the template rejects it or it does not fit into the model's length.
  End answer(const std::string& message, const std::function<bool(std::string_view)>& on_text);
  /// Removes all messages but the first one of the system.
  void reset();
  /// The model's maximum length in tokens.
  int64_t positions() const { return model_.config().model.max_position_embeddings; }

 private:
  std::vector<int64_t> prompt_of(const nlohmann::json& messages) const;
  /// Takes the cache of the previous turn, with the positions that `prompt` begins with.
  std::shared_ptr<KeyValueCache> take_cache(const std::vector<int64_t>& prompt);

  const Transformer& model_;
  const Tokenizer& tokenizer_;
  ChatTemplate& chat_;
  const EndOfTurn end_;
  SamplingParams sampling_;
  nlohmann::json messages_ = nlohmann::json::array();
  const size_t first_messages_;
  std::shared_ptr<KeyValueCache> cache_;  // of the previous turn; null at first
  std::vector<int64_t> cached_;           // its tokens
};

}  // namespace hero
