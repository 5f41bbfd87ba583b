#include "inference/server/completion_response.h"

#include <chrono>
#include <cstdio>
#include <random>

#include "inference/server/api_json.h"
#include "inference/server/token_text.h"

namespace hero {
namespace {

using nlohmann::ordered_json;

constexpr size_t kPartBytes = 64 << 10;  // of a response: choices are collected up to this size

std::string new_id() {
  thread_local std::mt19937_64 random{std::random_device()()};
  char text[40];
  std::snprintf(text, sizeof text, "cmpl-%016lx%016lx", random(), random());
  return text;
}

}  // namespace

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

void CompletionResponse::add(SequenceOutput output) {
  completion_tokens_ += output.num_generated;
  choices_[output.sequence].output.append(std::move(output));
}

ordered_json CompletionResponse::header() const {
  return {{"id", id_}, {"object", "text_completion"}, {"created", created_}, {"model", model_}};
}

ordered_json CompletionResponse::usage() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", completion_tokens_},
          {"total_tokens", prompt_tokens_ + completion_tokens_}};
}

std::string CompletionResponse::take_logprobs(Choice& choice) {
  LogprobsJson logprobs(choice.text_offset);
  if (const auto prompt = std::exchange(choice.output.prompt, nullptr)) {
    if (last_prompt_ != prompt) {
      last_prompt_ = prompt;
      last_prompt_json_ = LogprobsJson();
      last_prompt_json_.add(*prompt, tokenizer_);
    }
    logprobs = last_prompt_json_;
  }
  logprobs.add(std::exchange(choice.output.tokens, {}), tokenizer_);
  choice.text_offset = logprobs.text_offset();
  return logprobs.object();
}

std::string CompletionResponse::take_choice(size_t sequence) {
  auto& choice = choices_[sequence];
  std::string text = std::exchange(choice.output.text, {});
  if (!echoed_prompts_.empty() && !std::exchange(choice.prompt_echoed, true)) {
    text.insert(0, echoed_prompts_[sequence / n_]);
  }
  const std::string logprobs = logprobs_ ? take_logprobs(choice) : "null";
  const char* const reason = choice.output.finish_reason;
  return "{\"text\":" + json_line(text) + ",\"index\":" + std::to_string(sequence) +
         ",\"logprobs\":" + logprobs +
         ",\"finish_reason\":" + json_line(reason ? ordered_json(reason) : ordered_json()) + "}";
}

bool CompletionResponse::write(const std::function<bool(std::string_view)>& write) {
  std::string part = json_line(header());
  part.back() = ',';
  part += "\"choices\":[";
  for (size_t i = 0; i < choices_.size(); ++i) {
    part.append(i ? "," : "").append(take_choice(i));
    if (part.size() < kPartBytes) continue;
    if (!write(part)) return false;
    part.clear();
  }
  return write(part.append("],\"usage\":").append(json_line(usage())).append("}"));
}

std::string CompletionResponse::chunk(size_t sequence) {
  const auto& choice = choices_[sequence];
  const bool echo = !echoed_prompts_.empty() && !choice.prompt_echoed;
  const auto& output = choice.output;
  const bool tokens = output.prompt || !output.tokens.empty();
  if (!echo && !tokens && output.text.empty() && !output.finish_reason) return "";
  std::string object = json_line(header());
  object.back() = ',';
  object += "\"choices\":[" + take_choice(sequence) + "]";
  return object + (include_usage_ ? ",\"usage\":null}" : "}");
}

std::string CompletionResponse::usage_chunk() const {
  auto object = header();
  object["choices"] = ordered_json::array();
  object["usage"] = usage();
  return json_line(object);
}

}  // namespace hero
