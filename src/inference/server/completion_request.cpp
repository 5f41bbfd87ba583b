#include "inference/server/completion_request.h"

#include <limits>

#include "inference/server/request_fields.h"

namespace hero {
namespace {

using nlohmann::json;

void reject_unsupported(const RequestFields& fields, int64_t n) {
  const json* suffix = fields.find("suffix");
  fields.neutral("suffix", suffix && suffix->is_string() && suffix->get_ref<const std::string&>().empty(),
                 "nothing");
  const json* best = fields.find("best_of");
  fields.neutral("best_of", best && best->is_number_integer() && *best == n, "n = " + std::to_string(n));
}

std::vector<Prompt> read_prompts(const RequestFields& fields) {
  const char* const expected = "a string, a list of strings, a list of token ids, or a list of such lists";
  const json* prompt = fields.find("prompt");
  if (!prompt) fields.reject("prompt", nullptr, expected);
  if (prompt->is_string()) return {prompt->get<std::string>()};
  if (!prompt->is_array() || prompt->empty()) fields.reject("prompt", *prompt, expected);
  if (prompt->front().is_number()) return {token_ids(*prompt, "prompt")};
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < prompt->size(); ++i) {
    const json& item = (*prompt)[i];
    const std::string name = "prompt[" + std::to_string(i) + "]";
    if (item.is_string() != prompt->front().is_string() || !(item.is_string() || item.is_array())) {
      reject_field(name, item, prompt->front().is_string() ? "a string, like the first prompt" : expected);
    }
    if (item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else {
      prompts.emplace_back(token_ids(item, name));
    }
  }
  return prompts;
}

}  // namespace

std::vector<int64_t> token_ids(const json& value, const std::string& field) {
  const char* const expected = "a non-empty list of token ids";
  if (!value.is_array() || value.empty()) reject_field(field, value, expected);
  std::vector<int64_t> ids;
  ids.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    const json& id = value[i];
    const bool valid = id.is_number_integer() && id >= 0 && id <= std::numeric_limits<int32_t>::max();
    if (!valid) {
      reject_field(field + "[" + std::to_string(i) + "]", id, "a token id");
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

CompletionRequest parse_completion_request(const json& body, const RequestLimits& limits) {
  reject_unknown_fields(
      body, with_shared_fields({"prompt", "max_tokens", "echo", "logprobs", "best_of", "suffix"}));
  const RequestFields fields(body);
  CompletionRequest request;
  request.prompts = read_prompts(fields);
  request.max_tokens = fields.integer("max_tokens", 0, limits.max_tokens);
  read_sampling(fields, request);
  request.echo = fields.boolean("echo");
  request.logprobs = fields.integer("logprobs", 0, RequestLimits::logprobs).value_or(-1);
  reject_unsupported(fields, request.n);
  if (request.max_tokens == 0 && !request.echo) {
    fields.reject("max_tokens", 0, "at least 1 (0 with \"echo\": true)");
  }
  const int64_t sequences = request.n * std::ssize(request.prompts);
  if (sequences > RequestLimits::sequences) {
    throw ApiError(400,
                   "prompt: found " + std::to_string(request.prompts.size()) + " prompts with n = " +
                       std::to_string(request.n) + " completions each, expected at most " +
                       std::to_string(RequestLimits::sequences) + " completions",
                   "prompt");
  }
  return request;
}

}  // namespace hero
