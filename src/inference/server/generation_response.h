#pragma once
// OpenAI's response objects: the complete response, or chunks for streaming. Outputs are kept as text and
// compact records; the JSON of a choice is made when it is written.
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "inference/server/completion_request.h"
#include "inference/server/request_output.h"
#include "inference/server/text_stream.h"
#include "tokenizer/tokenizer.h"

namespace hero {

class GenerationResponse {
 public:
  virtual ~GenerationResponse() = default;

  void add(SequenceOutput output);
  /// Writes the complete response object in parts, once. Returns false as soon as `write` does.
  bool write(const std::function<bool(std::string_view)>& write);
  /// The streaming object with the new output of a sequence since the last call; "" if there is none.
  std::string chunk(size_t sequence);
  /// The last streaming object with include_usage: token counts, no choices.
  std::string usage_chunk() const;

 protected:
  struct Kind {
    const char *id_prefix, *object, *chunk_object;
  };
  struct Choice {
    SequenceOutput output;   // not yet written
    bool begun = false;      // a part of it has been written
    TextOffset text_offset;  // of the next token
  };

  /// `prompts`: the token ids of request.prompts. The tokenizer must outlive the object.
  GenerationResponse(Kind kind, const CompletionRequest& request,
                     const std::vector<std::vector<int64_t>>& prompts, const Tokenizer& tokenizer,
                     std::string model);

  /// Whether a chunk of the choice would have contents.
  virtual bool has_output(const Choice& choice) const;
  /// The JSON of the choice's output that is not yet written, as a part of a chunk or of the complete
  /// response.
  virtual std::string take_choice(size_t sequence, bool chunk) = 0;

  const Tokenizer& tokenizer_;
  const size_t n_;
  const bool logprobs_;
  std::vector<Choice> choices_;

 private:
  nlohmann::ordered_json header(const char* object) const;
  nlohmann::ordered_json usage() const;

  const Kind kind_;
  std::string id_, model_;
  int64_t created_;
  bool include_usage_;
  int64_t prompt_tokens_ = 0, completion_tokens_ = 0;
};

}  // namespace hero
