#include "inference/chat_template.h"

#include <algorithm>
#include <cstdlib>

#include "io/file_io.h"
#include "io/json.h"
#include "io/python.h"
#include "io/utf8.h"
#include "tokenizer/companions.h"

namespace hero {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kEscapedBytes = 6;  // of a byte in a JSON string, at most
constexpr size_t kErrorBytes = 16 << 10;
constexpr std::string_view kBuiltIn[] = {"chatml", "llama3", "deepseek", "plain"};  // not names of files

// The child runs a template of others: it gets no key of the server.
std::vector<std::string> renderer_environment() {
  std::vector<std::string> variables = {"PYTHONPATH=" + python_search_path()};
  for (const char* const name : {"PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ"}) {
    if (const char* const value = std::getenv(name)) variables.push_back(std::string(name) + "=" + value);
  }
  return variables;
}

// A special token: a string, or an object with the key "content".
std::string token_text(const json& value) {
  const json& text = value.is_object() && value.contains("content") ? value["content"] : value;
  return text.is_string() ? text.get<std::string>() : "";
}

std::map<std::string, std::string> special_tokens(const Tokenizer& tokenizer, const json& config) {
  std::map<std::string, std::string> tokens;
  if (tokenizer.bos_id() >= 0) tokens["bos_token"] = tokenizer.piece(tokenizer.bos_id());
  if (tokenizer.eos_id() >= 0) tokens["eos_token"] = tokenizer.piece(tokenizer.eos_id());
  for (const auto& [name, value] : config.items()) {
    if (!name.ends_with("_token")) continue;
    const std::string text = token_text(value);
    if (!text.empty()) tokens[name] = text;
  }
  return tokens;
}

// chat_template of a tokenizer_config.json: a string, or a list of objects with name and template.
std::optional<std::string> configured_template(const json& config) {
  const json value = config.value("chat_template", json());
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return std::nullopt;
  for (const json& entry : value) {
    if (!entry.is_object() || entry.value("name", json()) != "default") continue;
    const json text = entry.value("template", json());
    return text.is_string() ? std::optional(text.get<std::string>()) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

ChatTemplateSource find_chat_template(const std::string& option, const Tokenizer& tokenizer,
                                      const fs::path& tokenizer_path) {
  const auto companions = read_companions(tokenizer_path);
  const auto found = companions.find("tokenizer_config.json");
  json config = found == companions.end() ? json() : parse_json_or_null(found->second);
  if (!config.is_object()) config = json::object();
  ChatTemplateSource source{.special_tokens = special_tokens(tokenizer, config)};
  if (!option.empty()) {
    source.where = option;
    if (std::ranges::find(kBuiltIn, option) == std::end(kBuiltIn) && fs::exists(option))
      source.jinja = read_file(option);
  } else if (const auto file = companions.find("chat_template.jinja"); file != companions.end()) {
    source.where = "chat_template.jinja";
    source.jinja = file->second;
  } else if (source.jinja = configured_template(config); source.jinja) {
    source.where = "tokenizer_config.json";
  }
  if (const size_t bad = find_invalid_utf8(source.jinja.value_or("")); bad != std::string::npos) {
    throw UserError(source.where + ": byte " + std::to_string(bad) + ": invalid UTF-8, expected a template");
  }
  return source;
}

ChatTemplate::ChatTemplate(ChatTemplateSource source, Limits limits)
    : source_(std::move(source)), limits_(limits) {
  start();
}

void ChatTemplate::start() {
  json request = {{"special_tokens", source_.special_tokens}, {"max_bytes", limits_.text_bytes}};
  if (source_.jinja) {
    request["template"] = *source_.jinja;
  } else {
    request["name"] = source_.where;
  }
  child_ = std::make_unique<LineProcess>(
      std::vector<std::string>{python_program(), "-m", "hero_moe.chat_renderer"}, renderer_environment());
  try {
    const auto limit = std::chrono::steady_clock::now() + limits_.starting;
    const auto answer = exchange(request, limit);
    // Only the first child's, which is the same: other threads read it without the lock.
    if (jinja_.empty()) jinja_ = answer.at("template").get<std::string>();
  } catch (const ChatTemplateError&) {
    child_ = nullptr;
    throw;
  }
}

// The answer of the child, which has ended if this throws RunError.
json ChatTemplate::exchange(const json& request, Deadline limit) {
  const size_t most =
      kEscapedBytes * std::max(limits_.text_bytes, source_.jinja.value_or("").size()) + kErrorBytes;
  const std::string line = request.dump(-1, ' ', false, json::error_handler_t::replace);
  json answer;
  try {
    answer = parse_json_or_null(child_->exchange(line, most, limit));
  } catch (const RunError& error) {
    child_ = nullptr;
    throw RunError("chat template: " + source_.where + ": " + error.what());
  }
  if (!answer.is_object()) {
    child_ = nullptr;
    throw RunError("chat template: " + source_.where + ": found an answer that is not JSON");
  }
  if (const auto error = answer.find("error"); error != answer.end())
    throw ChatTemplateError("chat template: " + source_.where + ": " + error->get<std::string>());
  return answer;
}

std::optional<std::string> ChatTemplate::render(const json& messages, bool add_generation_prompt,
                                                Deadline deadline) {
  const std::unique_lock lock =
      deadline == Deadline::max() ? std::unique_lock(mutex_) : std::unique_lock(mutex_, deadline);
  if (!lock) return std::nullopt;
  try {
    if (!child_ || child_->ended()) start();
    const auto limit = std::min(deadline, std::chrono::steady_clock::now() + limits_.rendering);
    return exchange({{"messages", messages}, {"add_generation_prompt", add_generation_prompt}}, limit)
        .at("text")
        .get<std::string>();
  } catch (const RunError&) {
    if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
    throw;
  }
}

}  // namespace hero
