// Parses and validates the body of POST /v1/completions (OpenAI's completions API).
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

using Prompt = std::variant<std::string, std::vector<int64_t>>;  ///< text, or token ids

struct CompletionRequest {
  std::string model;  ///< "" if absent
  std::vector<Prompt> prompts;
  std::optional<int64_t> max_tokens;
  int64_t n = 1, top_k = 0, logprobs = -1;
  double temperature = 1, top_p = 1;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool echo = false, stream = false, include_usage = false, ignore_eos = false;
};

/// Upper limits for the fields of a request.
struct RequestLimits {
  static constexpr int64_t n = 128, sequences = 1024, logprobs = 20, stops = 64, stop_bytes = 1024;
  static constexpr int64_t composite_values = 4096;  ///< strings, lists and objects in a body
  static constexpr int64_t commas = 1 << 20;         ///< in a body, outside of strings
  int64_t max_tokens = 4096;
};

/// Parses a body as a JSON object. ApiError 400 for anything else.
nlohmann::json parse_body(std::string_view body);

/// ApiError 400 for invalid types and values, and for unsupported and unknown fields: none is silently
/// ignored. null counts as absent.
CompletionRequest parse_completion_request(const nlohmann::json& body, const RequestLimits& limits);

/// Throws ApiError 400: "FIELD: found VALUE, expected EXPECTED".
[[noreturn]] void reject_field(const std::string& field, const nlohmann::json& found,
                               const std::string& expected);

/// A non-empty list of non-negative token ids; `field`: its name in error messages. ApiError 400.
std::vector<int64_t> token_ids(const nlohmann::json& value, const std::string& field);

/// ApiError 400 for a field that is not in `known`; names the known fields, and the most similar one if any.
void reject_unknown_fields(const nlohmann::json& body, const std::vector<std::string_view>& known);

}  // namespace hero
