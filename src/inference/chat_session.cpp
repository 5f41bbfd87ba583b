#include "inference/chat_session.h"

#include <algorithm>
#include <utility>

#include "inference/server/text_stream.h"
#include "inference/server/token_text.h"

namespace hero {

using nlohmann::json;

ChatSession::ChatSession(const Transformer& model, const Tokenizer& tokenizer, ChatTemplate& chat,
                         EndOfTurn end, const std::string& system, SamplingParams sampling)
    : model_(model),
      tokenizer_(tokenizer),
      chat_(chat),
      end_(std::move(end)),
      sampling_(std::move(sampling)),
      first_messages_(system.empty() ? 0 : 1) {
  if (!system.empty()) messages_.push_back({{"role", "system"}, {"content", system}});
  sampling_.eos = end_.ids;
}

void ChatSession::reset() {
  messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(first_messages_), messages_.end());
}

std::vector<int64_t> ChatSession::prompt_of(const json& messages) const {
  const auto encoded = tokenizer_.encode_conversation(chat_.render(messages, /*add_generation_prompt=*/true));
  if (encoded.empty()) throw UserError("chat template: found no text, expected some");
  if (std::ssize(encoded) >= positions()) {
    throw UserError("found a conversation of " + std::to_string(encoded.size()) +
                    " tokens, expected fewer than the model's maximum length of " +
                    std::to_string(positions()) + "; /reset starts again");
  }
  return {encoded.begin(), encoded.end()};
}

std::shared_ptr<KeyValueCache> ChatSession::take_cache(const std::vector<int64_t>& prompt) {
  auto cache = cache_ ? std::exchange(cache_, nullptr) : std::make_shared<KeyValueCache>();
  // The last token is computed in any case, for its logits. With a capacity limit, which tokens an expert
  // drops depends on all of a pass.
  const auto same = std::ranges::mismatch(cached_, prompt).in1 - cached_.begin();
  const bool reusable = model_.config().router.eval_capacity_factor <= 0;
  cache->truncate(reusable ? std::min<int64_t>(same, std::ssize(prompt) - 1) : 0);
  return cache;
}

ChatSession::End ChatSession::answer(const std::string& message,
                                     const std::function<bool(std::string_view)>& on_text) {
  json messages = messages_;
  messages.push_back({{"role", "user"}, {"content", message}});
  const auto prompt = prompt_of(messages);
  const int64_t free_positions = positions() - std::ssize(prompt);
  Generator generator(model_);
  const auto cache = take_cache(prompt);
  generator.add(prompt, sampling_, cache);
  Utf8StreamDecoder decoder;
  StopStringMatcher stops(end_.strings);
  std::string answer;
  const auto add = [&](const std::string& text) {
    answer += text;
    return on_text(text);
  };
  End end = End::kStop;
  int64_t generated = 0;
  std::vector<int64_t> tokens = prompt;
  for (bool running = true; running;) {
    const auto token = generator.step().at(0);
    if (token.id) {
      ++generated;
      tokens.push_back(*token.id);
      const bool goes_on = add(stops.add(decoder.add(token_bytes(tokenizer_, *token.id))));
      running = goes_on && !stops.found();
      if (!goes_on) end = End::kInterrupted;
    } else {
      running = false;
      if (!token.sampled) end = generated >= free_positions ? End::kPositions : End::kLength;
    }
  }
  if (!stops.found()) {
    std::string rest = stops.add(decoder.flush());
    rest += stops.flush();
    if (!rest.empty()) add(rest);
  }
  ++sampling_.seed;
  tokens.resize(static_cast<size_t>(cache->length));
  cached_ = std::move(tokens);
  cache_ = cache;
  messages.push_back({{"role", "assistant"}, {"content", answer}});
  messages_ = std::move(messages);
  return end;
}

}  // namespace hero
