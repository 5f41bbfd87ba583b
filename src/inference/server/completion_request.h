// The body of a POST to /v1/completions: OpenAI's fields and what is said of each, checked.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "inference/server/api_error.h"

namespace hero {

using PromptText = std::variant<std::string, std::vector<int64_t>>;  ///< text, or token ids

struct CompletionRequest {
  std::string model;  ///< "" where the request names none
  std::vector<PromptText> prompts;
  std::optional<int64_t> max_tokens;
  int64_t n = 1, top_k = 0, logprobs = -1;
  double temperature = 1, top_p = 1;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool echo = false, stream = false, include_usage = false, ignore_eos = false;
};

/// The most of each that a request may ask for.
struct RequestLimits {
  static constexpr int64_t n = 128, texts = 1024, logprobs = 20, stops = 64, stop_bytes = 1024;
  int64_t max_tokens = 4096;
};

/// The JSON object of a body. ApiError 400 for anything else.
nlohmann::json parse_body(std::string_view body);

/// ApiError 400 for wrong types and values, fields that are not supported, and fields that are not known: a
/// setting without effect would be a text that nobody asked for. null is as good as absent.
CompletionRequest parse_completion_request(const nlohmann::json& body, const RequestLimits& limits);

/// "FIELD: found VALUE, expected EXPECTED", about FIELD.
[[noreturn]] void refuse_field(const std::string& field, const nlohmann::json& found,
                               const std::string& expected);

/// A list of token ids, of which none is negative; `field` stands for it in messages. ApiError 400.
std::vector<int64_t> token_ids(const nlohmann::json& value, const std::string& field);

/// ApiError 400 for a field that is not among `known`.
void refuse_unknown_fields(const nlohmann::json& body, const std::vector<std::string_view>& known);

}  // namespace hero
