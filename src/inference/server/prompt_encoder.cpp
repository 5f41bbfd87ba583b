#include "inference/server/prompt_encoder.h"

#include <algorithm>

namespace hero {
namespace {

// Upper bound of the text that becomes one token. Normalization can shorten text; four is the largest ratio
// of UTF-8 sizes of one character.
int64_t longest_token(const Tokenizer& tokenizer) {
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max({longest, tokenizer.bytes(id).size(), tokenizer.piece(id).size()});
  }
  return static_cast<int64_t>(longest) * (tokenizer.lossless() ? 1 : 4);
}

}  // namespace

PromptEncoder::PromptEncoder(const Tokenizer& tokenizer, int64_t vocabulary, int64_t positions)
    : tokenizer_(tokenizer),
      vocabulary_(vocabulary),
      positions_(positions),
      longest_token_(longest_token(tokenizer)) {}

std::vector<std::vector<int64_t>> PromptEncoder::encode(const CompletionRequest& request,
                                                        Clock::time_point deadline) const {
  const int64_t max_tokens = request.max_tokens.value_or(1);
  std::vector<std::vector<int64_t>> prompts;
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    if (Clock::now() >= deadline) throw timeout_error();
    const std::string name = "prompt[" + std::to_string(i) + "]";
    auto ids = encode(request.prompts[i], name);
    check_length(ids, max_tokens, name, "prompt");
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

void PromptEncoder::check_length(const std::vector<int64_t>& ids, int64_t max_tokens, const std::string& name,
                                 const std::string& param) const {
  if (std::ssize(ids) + max_tokens <= positions_) return;
  throw ApiError(400,
                 name + ": found " + std::to_string(ids.size()) +
                     " tokens and max_tokens = " + std::to_string(max_tokens) + ", expected at most " +
                     std::to_string(positions_) + " in total (max_position_embeddings)",
                 param, "context_length_exceeded");
}

std::vector<int64_t> PromptEncoder::encode_conversation(const std::string& text, int64_t max_tokens) const {
  const auto encoded = tokenizer_.encode_conversation(text);
  std::vector<int64_t> ids(encoded.begin(), encoded.end());
  if (ids.empty())
    throw ApiError(400, "messages: found no text after the chat template, expected some", "messages");
  check_length(ids, max_tokens, "messages", "messages");
  return ids;
}

std::vector<int64_t> PromptEncoder::encode(const Prompt& prompt, const std::string& name) const {
  if (const auto* ids = std::get_if<std::vector<int64_t>>(&prompt)) {
    for (const int64_t id : *ids) {
      if (id < vocabulary_) continue;
      throw ApiError(400,
                     name + ": found the token id " + std::to_string(id) + ", expected 0 to " +
                         std::to_string(vocabulary_ - 1),
                     "prompt");
    }
    return *ids;
  }
  const auto& text = std::get<std::string>(prompt);
  if (std::ssize(text) > max_text_bytes()) {
    throw ApiError(400,
                   name + ": found " + std::to_string(text.size()) + " bytes, expected at most " +
                       std::to_string(max_text_bytes()) + ", which fit into " + std::to_string(positions_) +
                       " tokens (max_position_embeddings)",
                   "prompt", "context_length_exceeded");
  }
  const auto encoded = tokenizer_.encode(text);
  std::vector<int64_t> ids(encoded.begin(), encoded.end());
  if (ids.empty() && tokenizer_.eos_id() >= 0) ids.push_back(tokenizer_.eos_id());  // start of a document
  if (ids.empty()) throw ApiError(400, name + ": found no tokens, expected at least one", "prompt");
  return ids;
}

}  // namespace hero
