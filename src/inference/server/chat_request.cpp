#include "inference/server/chat_request.h"

#include <algorithm>

#include "inference/server/request_fields.h"
#include "io/json.h"

namespace hero {
namespace {

using nlohmann::json;

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
constexpr std::string_view kMessageFields[] = {"role", "content", "name", "tool_call_id"};

// A string, or the texts of a list of text parts.
std::string read_content(const json& message, const std::string& where) {
  const json content = message.value("content", json());
  const std::string field = where + ".content";
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array() || content.empty())
    reject_field(field, content, "a string or a list of text parts");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const json& part = content[i];
    const std::string name = field + "[" + std::to_string(i) + "]";
    if (!part.is_object()) reject_field(name, part, "an object with type and text");
    const json type = part.value("type", json()), words = part.value("text", json());
    if (type != "text") reject_field(name + ".type", type, "text: this server supports no other parts");
    if (!words.is_string()) reject_field(name + ".text", words, "a string");
    text.append(i ? "\n" : "").append(words.get<std::string>());
  }
  return text;
}

json read_message(const json& message, const std::string& where) {
  if (!message.is_object()) reject_field(where, message, "an object with role and content");
  for (const auto& [name, value] : message.items()) {
    if (value.is_null() || std::ranges::find(kMessageFields, name) != std::end(kMessageFields)) continue;
    throw ApiError(
        400,
        where + ": found the field " + format_value(name) + ", expected role, content, name or tool_call_id",
        where + "." + name);
  }
  const RequestFields fields(message, where + ".");
  const std::string role = fields.string("role");
  if (std::ranges::find(kRoles, role) == std::end(kRoles))
    reject_field(where + ".role", message.value("role", json()),
                 "system, developer, user, assistant or tool");
  json read = {{"role", role}, {"content", read_content(message, where)}};
  for (const char* const name : {"name", "tool_call_id"}) {
    if (fields.find(name)) read[name] = fields.string(name);
  }
  return read;
}

json read_messages(const RequestFields& fields) {
  const json* messages = fields.find("messages");
  if (!messages || !messages->is_array() || messages->empty())
    fields.reject("messages", messages ? *messages : json(), "a non-empty list of messages");
  json read = json::array();
  for (size_t i = 0; i < messages->size(); ++i)
    read.push_back(read_message((*messages)[i], "messages[" + std::to_string(i) + "]"));
  return read;
}

// Both names mean the same here.
std::optional<int64_t> read_max_tokens(const RequestFields& fields, const RequestLimits& limits) {
  const auto older = fields.integer("max_tokens", 1, limits.max_tokens);
  const auto newer = fields.integer("max_completion_tokens", 1, limits.max_tokens);
  if (older && newer && older != newer)
    fields.reject("max_completion_tokens", *newer, "max_tokens = " + std::to_string(*older));
  return newer ? newer : older;
}

int64_t read_logprobs(const RequestFields& fields) {
  const auto top = fields.integer("top_logprobs", 0, RequestLimits::logprobs);
  if (fields.boolean("logprobs")) return top.value_or(0);
  if (top) fields.reject("top_logprobs", *top, "nothing without \"logprobs\": true");
  return -1;
}

}  // namespace

ChatRequest parse_chat_request(const json& body, const RequestLimits& limits) {
  reject_unknown_fields(body, with_shared_fields({"messages", "max_tokens", "max_completion_tokens",
                                                  "logprobs", "top_logprobs"}));
  const RequestFields fields(body);
  ChatRequest request{.messages = read_messages(fields)};
  for (const json& message : request.messages) {
    for (const json& text : message) request.message_bytes += std::ssize(text.get_ref<const std::string&>());
  }
  request.completion.max_tokens = read_max_tokens(fields, limits);
  request.completion.logprobs = read_logprobs(fields);
  read_sampling(fields, request.completion);
  return request;
}

}  // namespace hero
