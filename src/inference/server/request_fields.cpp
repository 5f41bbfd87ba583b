#include "inference/server/request_fields.h"

#include <algorithm>

#include "io/error.h"
#include "io/json.h"
#include "io/suggest.h"

namespace hero {
namespace {

using nlohmann::json;

// Those of read_sampling.
constexpr std::string_view kSharedFields[] = {"model",
                                              "n",
                                              "temperature",
                                              "top_p",
                                              "top_k",
                                              "seed",
                                              "stop",
                                              "stream",
                                              "stream_options",
                                              "ignore_eos",
                                              "user",
                                              "presence_penalty",
                                              "frequency_penalty",
                                              "logit_bias"};

std::vector<std::string> read_stops(const RequestFields& fields) {
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

std::optional<uint64_t> read_seed(const RequestFields& fields) {
  const json* value = fields.find("seed");
  if (!value) return std::nullopt;
  if (!value->is_number_integer()) fields.reject("seed", *value, "a 64-bit integer");
  return value->is_number_unsigned() ? value->get<uint64_t>() : static_cast<uint64_t>(value->get<int64_t>());
}

bool read_include_usage(const RequestFields& fields, bool stream) {
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
  return RequestFields(*options, "stream_options.").boolean("include_usage");
}

void reject_penalties(const RequestFields& fields) {
  for (const char* const name : {"presence_penalty", "frequency_penalty"}) {
    const json* value = fields.find(name);
    fields.neutral(name, value && value->is_number() && value->get<double>() == 0, "0");
  }
  const json* bias = fields.find("logit_bias");
  fields.neutral("logit_bias", bias && bias->is_object() && bias->empty(), "nothing");
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

std::vector<std::string_view> with_shared_fields(std::vector<std::string_view> own) {
  own.insert(own.begin(), std::begin(kSharedFields), std::end(kSharedFields));
  return own;
}

void read_sampling(const RequestFields& fields, CompletionRequest& request) {
  request.model = fields.string("model");
  request.n = fields.integer("n", 1, RequestLimits::n).value_or(1);
  request.temperature = fields.number("temperature", 1, 0, 100, "a number from 0 to 100");
  request.top_p = fields.number("top_p", 1, 0, 1, "a number from 0 to 1");
  request.top_k = std::max<int64_t>(0, fields.integer("top_k", -1, INT32_MAX).value_or(0));
  request.seed = read_seed(fields);
  request.stop = read_stops(fields);
  request.stream = fields.boolean("stream");
  request.include_usage = read_include_usage(fields, request.stream);
  request.ignore_eos = fields.boolean("ignore_eos");
  fields.string("user");
  reject_penalties(fields);
}

}  // namespace hero
