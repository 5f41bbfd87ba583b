#include "inference/server/completion_response.h"

#include <chrono>
#include <cstdio>
#include <random>

#include "inference/server/text_stream.h"
#include "io/utf8.h"

namespace hero {
namespace {

using nlohmann::ordered_json;

constexpr double kLeast = -9999;  // JSON has no infinity

std::string new_id() {
  thread_local std::mt19937_64 draw{std::random_device()()};
  char text[40];
  std::snprintf(text, sizeof text, "cmpl-%016lx%016lx", draw(), draw());
  return text;
}

double finite(double logprob) { return logprob > kLeast ? logprob : kLeast; }

bool in_vocabulary(const Tokenizer& tokenizer, int64_t id) { return id < tokenizer.vocab_size(); }

std::string bytes_of(const Tokenizer& tokenizer, int64_t id) {
  return in_vocabulary(tokenizer, id) ? tokenizer.bytes(static_cast<int32_t>(id)) : "";
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::string json_line(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string error_json(const ApiError& error) {
  const auto or_null = [](const std::string& s) { return s.empty() ? ordered_json() : ordered_json(s); };
  const char* const type = error.status < 500 ? "invalid_request_error" : "server_error";
  return json_line({{"error",
                     {{"message", error.what()},
                      {"type", type},
                      {"param", or_null(error.param)},
                      {"code", or_null(error.code)}}}});
}

std::string token_word(const Tokenizer& tokenizer, int64_t id) {
  std::string bytes = bytes_of(tokenizer, id);
  if (bytes.empty() && in_vocabulary(tokenizer, id)) bytes = tokenizer.piece(static_cast<int32_t>(id));
  if (bytes.empty()) return "token_id:" + std::to_string(id);
  if (find_invalid_utf8(bytes) == std::string::npos) return bytes;
  std::string word = "bytes:";
  for (const char c : bytes) {
    char hex[8];
    std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned char>(c));
    word += hex;
  }
  return word;
}

std::string text_of(const Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  CharacterJoiner joiner;
  std::string text;
  for (const int64_t id : ids) text += joiner.add(bytes_of(tokenizer, id));
  return text + joiner.finish();
}

CompletionResponse::CompletionResponse(const CompletionRequest& request,
                                       const std::vector<std::vector<int64_t>>& prompts,
                                       const Tokenizer& tokenizer, std::string model)
    : tokenizer_(tokenizer),
      id_(new_id()),
      model_(std::move(model)),
      created_(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())),
      n_(static_cast<size_t>(request.n)),
      logs_(request.logprobs >= 0),
      counts_in_chunks_(request.include_usage),
      choices_(n_ * prompts.size()) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompt_tokens_ += std::ssize(prompts[i]);
    if (!request.echo) continue;
    const auto* text = std::get_if<std::string>(&request.prompts[i]);
    echoed_.push_back(text ? *text : text_of(tokenizer, prompts[i]));
  }
}

void CompletionResponse::add(const Event& event) {
  auto& choice = choices_[event.text];
  if (!choice.begun && !echoed_.empty()) choice.text = echoed_[event.text / n_];
  choice.begun = true;
  choice.text += event.content;
  choice.tokens.insert(choice.tokens.end(), event.tokens.begin(), event.tokens.end());
  choice.finish = event.finish;
  made_ += event.made;
}

ordered_json CompletionResponse::head() const {
  return {{"id", id_}, {"object", "text_completion"}, {"created", created_}, {"model", model_}};
}

ordered_json CompletionResponse::usage() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", made_},
          {"total_tokens", prompt_tokens_ + made_}};
}

ordered_json CompletionResponse::take_logprobs(Choice& choice) const {
  ordered_json words = ordered_json::array(), logs = words, tops = words, offsets = words;
  for (const auto& token : choice.tokens) {
    const std::string bytes = bytes_of(tokenizer_, token.id);
    const std::string word = token_word(tokenizer_, token.id);
    // A token that goes on with a character stands where the character stands.
    const bool inside = !bytes.empty() && continues_character(bytes[0]) && choice.characters > 0;
    offsets.push_back(choice.characters - inside);
    for (const char c : bytes) choice.characters += !continues_character(c);
    words.push_back(word);
    if (!token.logprobs) {
      logs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    // Two ids may have one word: the likelier one stays.
    std::map<std::string, double> top;
    for (const auto& [id, log] : token.logprobs->top) top.emplace(token_word(tokenizer_, id), finite(log));
    top.emplace(word, finite(token.logprobs->chosen));
    logs.push_back(finite(token.logprobs->chosen));
    tops.push_back(std::move(top));
  }
  choice.tokens.clear();
  return {{"tokens", words}, {"token_logprobs", logs}, {"top_logprobs", tops}, {"text_offset", offsets}};
}

ordered_json CompletionResponse::take_choice(size_t text) {
  auto& choice = choices_[text];
  ordered_json found{{"text", std::exchange(choice.text, {})}, {"index", text}, {"logprobs", nullptr}};
  if (logs_) found["logprobs"] = take_logprobs(choice);
  found["finish_reason"] = choice.finish ? ordered_json(choice.finish) : ordered_json();
  return found;
}

// Text after text, so that the probabilities of all of them never stand in memory as JSON values.
std::string CompletionResponse::whole() {
  std::string line = json_line(head());
  line.back() = ',';
  line += "\"choices\":[";
  for (size_t i = 0; i < choices_.size(); ++i) line.append(i ? "," : "").append(json_line(take_choice(i)));
  return line.append("],\"usage\":").append(json_line(usage())).append("}");
}

std::string CompletionResponse::chunk(size_t text) {
  const auto& choice = choices_[text];
  if (choice.text.empty() && choice.tokens.empty() && !choice.finish) return "";
  auto object = head();
  object["choices"] = ordered_json::array({take_choice(text)});
  if (counts_in_chunks_) object["usage"] = nullptr;
  return json_line(object);
}

std::string CompletionResponse::usage_chunk() const {
  auto object = head();
  object["choices"] = ordered_json::array();
  object["usage"] = usage();
  return json_line(object);
}

}  // namespace hero
