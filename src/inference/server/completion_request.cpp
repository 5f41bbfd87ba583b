#include "inference/server/completion_request.h"

#include <algorithm>
#include <limits>

#include "io/error.h"
#include "io/json.h"
#include "io/suggest.h"

namespace hero {
namespace {

using nlohmann::json;

constexpr std::string_view kKnownFields[] = {"model",
                                             "prompt",
                                             "max_tokens",
                                             "temperature",
                                             "top_p",
                                             "top_k",
                                             "n",
                                             "stop",
                                             "seed",
                                             "echo",
                                             "logprobs",
                                             "stream",
                                             "user",
                                             "best_of",
                                             "suffix",
                                             "logit_bias",
                                             "ignore_eos",
                                             "stream_options",
                                             "presence_penalty",
                                             "frequency_penalty"};

// Reads the fields of an object; null counts as absent.
class Fields {
 public:
  explicit Fields(const json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  const json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool boolean(const char* name) const {
    const json* value = find(name);
    if (value && !value->is_boolean()) reject(name, *value, "true or false");
    return value && value->get<bool>();
  }
  std::optional<int64_t> integer(const char* name, int64_t min, int64_t max) const {
    const json* value = find(name);
    if (!value) return std::nullopt;
    const bool fits_int64 = value->is_number_integer() &&
                            !(value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX});
    if (!fits_int64 || value->get<int64_t>() < min || value->get<int64_t>() > max) {
      reject(name, *value, "an integer from " + std::to_string(min) + " to " + std::to_string(max));
    }
    return value->get<int64_t>();
  }
  double number(const char* name, double default_value, double min, double max, const char* expected) const {
    const json* value = find(name);
    if (!value) return default_value;
    if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max)) {
      reject(name, *value, expected);
    }
    return value->get<double>();
  }
  std::string string(const char* name) const {
    const json* value = find(name);
    if (!value) return "";
    if (!value->is_string()) reject(name, *value, "a string");
    return value->get<std::string>();
  }
  [[noreturn]] void reject(const char* name, const json& found, const std::string& expected) const {
    reject_field(prefix_ + name, found, expected);
  }

 private:
  const json& object_;
  std::string prefix_;
};

// Unsupported fields are accepted only with their neutral values.
void reject_unsupported(const Fields& fields, int64_t n) {
  const auto neutral = [&](const char* name, bool is_neutral, const std::string& expected) {
    if (const json* value = fields.find(name); value && !is_neutral) {
      fields.reject(name, *value, expected + ": this server does not support it");
    }
  };
  const auto zero = [&](const char* name) {
    const json* value = fields.find(name);
    neutral(name, value && value->is_number() && value->get<double>() == 0, "0");
  };
  zero("presence_penalty");
  zero("frequency_penalty");
  const json* suffix = fields.find("suffix");
  neutral("suffix", suffix && suffix->is_string() && suffix->get_ref<const std::string&>().empty(),
          "nothing");
  const json* bias = fields.find("logit_bias");
  neutral("logit_bias", bias && bias->is_object() && bias->empty(), "nothing");
  const json* best = fields.find("best_of");
  neutral("best_of", best && best->is_number_integer() && *best == n, "n = " + std::to_string(n));
}

std::vector<Prompt> read_prompts(const Fields& fields) {
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

std::vector<std::string> read_stops(const Fields& fields) {
  const json* value = fields.find("stop");
  if (!value) return {};
  const std::string bytes = std::to_string(RequestLimits::stop_bytes),
                    expected = "a string of 1 to " + bytes + " bytes, or a list of at most " +
                               std::to_string(RequestLimits::stops);
  const json list = value->is_array() ? *value : json::array({*value});
  if (std::ssize(list) > RequestLimits::stops) fields.reject("stop", *value, expected);
  std::vector<std::string> stops;
  for (const json& stop : list) {
    const bool valid = stop.is_string() && !stop.get_ref<const std::string&>().empty() &&
                       std::ssize(stop.get_ref<const std::string&>()) <= RequestLimits::stop_bytes;
    if (!valid) fields.reject("stop", stop, expected);
    stops.push_back(stop.get<std::string>());
  }
  return stops;
}

std::optional<uint64_t> read_seed(const Fields& fields) {
  const json* value = fields.find("seed");
  if (!value) return std::nullopt;
  if (!value->is_number_integer()) fields.reject("seed", *value, "a 64-bit integer");
  return value->is_number_unsigned() ? value->get<uint64_t>() : static_cast<uint64_t>(value->get<int64_t>());
}

bool read_include_usage(const Fields& fields, bool stream) {
  const json* options = fields.find("stream_options");
  if (!options) return false;
  if (!options->is_object() || !stream) {
    fields.reject("stream_options", *options, "an object, with \"stream\": true");
  }
  for (const auto& [name, value] : options->items()) {
    if (name != "include_usage") {
      throw ApiError(400, "stream_options: found " + format_value(name) + ", expected include_usage",
                     "stream_options");
    }
  }
  return Fields(*options, "stream_options.").boolean("include_usage");
}

// As JSON values, "{}," and "\"\"," need more than 20 times their size, numbers at most 8 times, and twice
// that while their list grows.
void check_number_of_values(std::string_view body) {
  int64_t count = 0, commas = 0;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      i += c == '\\';
      in_string = c != '"';
    } else {
      in_string = c == '"';
      count += in_string || c == '[' || c == '{';
      commas += c == ',';
    }
  }
  const auto check = [](int64_t found, const char* what, int64_t limit) {
    if (found <= limit) return;
    throw ApiError(400, "body: found " + std::to_string(found) + " " + what + ", expected at most " +
                            std::to_string(limit));
  };
  check(count, "strings, lists and objects", RequestLimits::composite_values);
  check(commas, "commas between values", RequestLimits::commas);
}

}  // namespace

void reject_field(const std::string& field, const json& found, const std::string& expected) {
  const std::string value = found.is_null() ? "nothing" : format_value(found);
  throw ApiError(400, field + ": found " + value + ", expected " + expected, field);
}

json parse_body(std::string_view body) {
  check_number_of_values(body);
  json value;
  try {
    value = parse_json(body, {"body"});
  } catch (const UserError& e) {
    throw ApiError(400, e.what());
  }
  if (!value.is_object())
    throw ApiError(400, "body: found " + format_value(value) + ", expected a JSON object");
  return value;
}

void reject_unknown_fields(const json& body, const std::vector<std::string_view>& known) {
  for (const auto& [name, value] : body.items()) {
    if (value.is_null() || std::ranges::find(known, name) != known.end()) continue;
    std::string expected;
    for (const auto& field : known) expected += (expected.empty() ? "" : ", ") + std::string(field);
    const std::string similar(similar_name(known, name));
    const std::string suggestion = similar.empty() ? "" : "; did you mean " + similar + "?";
    throw ApiError(
        400, "body: found the field " + format_value(name) + ", expected one of " + expected + suggestion,
        name);
  }
}

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
  reject_unknown_fields(body, {std::begin(kKnownFields), std::end(kKnownFields)});
  const Fields fields(body);
  CompletionRequest request;
  request.model = fields.string("model");
  request.prompts = read_prompts(fields);
  request.max_tokens = fields.integer("max_tokens", 0, limits.max_tokens);
  request.n = fields.integer("n", 1, RequestLimits::n).value_or(1);
  request.temperature = fields.number("temperature", 1, 0, 100, "a number from 0 to 100");
  request.top_p = fields.number("top_p", 1, 0, 1, "a number from 0 to 1");
  request.top_k = std::max<int64_t>(0, fields.integer("top_k", -1, INT32_MAX).value_or(0));
  request.seed = read_seed(fields);
  request.stop = read_stops(fields);
  request.echo = fields.boolean("echo");
  request.logprobs = fields.integer("logprobs", 0, RequestLimits::logprobs).value_or(-1);
  request.stream = fields.boolean("stream");
  request.include_usage = read_include_usage(fields, request.stream);
  request.ignore_eos = fields.boolean("ignore_eos");
  fields.string("user");
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
