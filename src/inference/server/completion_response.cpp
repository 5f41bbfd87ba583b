#include "inference/server/completion_response.h"

#include <chrono>
#include <cstdio>
#include <random>

#include "inference/server/text_stream.h"
#include "io/utf8.h"

namespace hero {
namespace {

using nlohmann::ordered_json;

constexpr double kMinLogprob = -9999;  // replaces -inf, which JSON lacks

std::string new_id() {
  thread_local std::mt19937_64 random{std::random_device()()};
  char text[40];
  std::snprintf(text, sizeof text, "cmpl-%016lx%016lx", random(), random());
  return text;
}

double finite(double logprob) { return logprob > kMinLogprob ? logprob : kMinLogprob; }

bool in_vocabulary(const Tokenizer& tokenizer, int64_t id) { return id < tokenizer.vocab_size(); }

std::string bytes_of(const Tokenizer& tokenizer, int64_t id) {
  return in_vocabulary(tokenizer, id) ? tokenizer.bytes(static_cast<int32_t>(id)) : "";
}

// nullptr: none.
const TokenLogprobs* logprobs_of(const TokenWithLogprobs& token) {
  return token.logprobs ? &*token.logprobs : nullptr;
}

bool is_continuation_byte(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::string json_line(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string token_string(const Tokenizer& tokenizer, int64_t id) {
  std::string bytes = bytes_of(tokenizer, id);
  if (bytes.empty() && in_vocabulary(tokenizer, id)) bytes = tokenizer.piece(static_cast<int32_t>(id));
  if (bytes.empty()) return "token_id:" + std::to_string(id);
  if (find_invalid_utf8(bytes) == std::string::npos) return bytes;
  std::string text = "bytes:";
  for (const char c : bytes) {
    char hex[8];
    std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned char>(c));
    text += hex;
  }
  return text;
}

std::string decode_text(const Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  Utf8StreamDecoder decoder;
  std::string text;
  for (const int64_t id : ids) text += decoder.add(bytes_of(tokenizer, id));
  return text + decoder.flush();
}

CompletionResponse::CompletionResponse(const CompletionRequest& request,
                                       const std::vector<std::vector<int64_t>>& prompts,
                                       const Tokenizer& tokenizer, std::string model)
    : tokenizer_(tokenizer),
      id_(new_id()),
      model_(std::move(model)),
      created_(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())),
      n_(static_cast<size_t>(request.n)),
      logprobs_(request.logprobs >= 0),
      include_usage_(request.include_usage),
      choices_(n_ * prompts.size()) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompt_tokens_ += std::ssize(prompts[i]);
    if (!request.echo) continue;
    const auto* text = std::get_if<std::string>(&request.prompts[i]);
    echoed_prompts_.push_back(text ? *text : decode_text(tokenizer, prompts[i]));
  }
}

void CompletionResponse::add(const SequenceOutput& output) {
  auto& choice = choices_[output.sequence];
  if (!choice.started && !echoed_prompts_.empty()) choice.text = echoed_prompts_[output.sequence / n_];
  choice.started = true;
  choice.text += output.text;
  choice.tokens.insert(choice.tokens.end(), output.tokens.begin(), output.tokens.end());
  choice.finish_reason = output.finish_reason;
  completion_tokens_ += output.num_generated;
}

ordered_json CompletionResponse::header() const {
  return {{"id", id_}, {"object", "text_completion"}, {"created", created_}, {"model", model_}};
}

ordered_json CompletionResponse::usage() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", completion_tokens_},
          {"total_tokens", prompt_tokens_ + completion_tokens_}};
}

ordered_json CompletionResponse::take_logprobs(Choice& choice) const {
  ordered_json strings = ordered_json::array(), logprobs = strings, tops = strings, offsets = strings;
  for (const auto& token : choice.tokens) {
    const std::string bytes = bytes_of(tokenizer_, token.id);
    const std::string string = token_string(tokenizer_, token.id);
    // A token that starts inside a character has the offset of that character.
    const bool inside = !bytes.empty() && is_continuation_byte(bytes[0]) && choice.text_offset > 0;
    offsets.push_back(choice.text_offset - inside);
    for (const char c : bytes) choice.text_offset += !is_continuation_byte(c);
    strings.push_back(string);
    const TokenLogprobs* found = logprobs_of(token);
    if (!found) {
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    // Several ids may have the same string: emplace keeps the most likely.
    std::map<std::string, double> top;
    for (const auto& [id, logprob] : found->top) top.emplace(token_string(tokenizer_, id), finite(logprob));
    top.emplace(string, finite(found->chosen));
    logprobs.push_back(finite(found->chosen));
    tops.push_back(std::move(top));
  }
  choice.tokens.clear();
  return {
      {"tokens", strings}, {"token_logprobs", logprobs}, {"top_logprobs", tops}, {"text_offset", offsets}};
}

ordered_json CompletionResponse::take_choice(size_t sequence) {
  auto& choice = choices_[sequence];
  ordered_json object{{"text", std::exchange(choice.text, {})}, {"index", sequence}, {"logprobs", nullptr}};
  if (logprobs_) object["logprobs"] = take_logprobs(choice);
  object["finish_reason"] = choice.finish_reason ? ordered_json(choice.finish_reason) : ordered_json();
  return object;
}

// Serializes choice by choice: the logprobs of all choices as JSON values would need too much memory.
std::string CompletionResponse::complete() {
  std::string line = json_line(header());
  line.back() = ',';
  line += "\"choices\":[";
  for (size_t i = 0; i < choices_.size(); ++i) line.append(i ? "," : "").append(json_line(take_choice(i)));
  return line.append("],\"usage\":").append(json_line(usage())).append("}");
}

std::string CompletionResponse::chunk(size_t sequence) {
  const auto& choice = choices_[sequence];
  if (choice.text.empty() && choice.tokens.empty() && !choice.finish_reason) return "";
  auto object = header();
  object["choices"] = ordered_json::array({take_choice(sequence)});
  if (include_usage_) object["usage"] = nullptr;
  return json_line(object);
}

std::string CompletionResponse::usage_chunk() const {
  auto object = header();
  object["choices"] = ordered_json::array();
  object["usage"] = usage();
  return json_line(object);
}

}  // namespace hero
