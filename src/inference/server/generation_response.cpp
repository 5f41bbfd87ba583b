#include "inference/server/generation_response.h"

#include <chrono>
#include <cstdio>
#include <random>

#include "inference/server/api_json.h"

namespace hero {
namespace {

using nlohmann::ordered_json;

constexpr size_t kPartBytes = 64 << 10;  // of a response: choices are collected up to this size

std::string new_id(const char* prefix) {
  thread_local std::mt19937_64 random{std::random_device()()};
  char text[64];
  std::snprintf(text, sizeof text, "%s-%016lx%016lx", prefix, random(), random());
  return text;
}

}  // namespace

GenerationResponse::GenerationResponse(Kind kind, const CompletionRequest& request,
                                       const std::vector<std::vector<int64_t>>& prompts,
                                       const Tokenizer& tokenizer, std::string model)
    : tokenizer_(tokenizer),
      n_(static_cast<size_t>(request.n)),
      logprobs_(request.logprobs >= 0),
      choices_(n_ * prompts.size()),
      kind_(kind),
      id_(new_id(kind.id_prefix)),
      model_(std::move(model)),
      created_(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())),
      include_usage_(request.include_usage) {
  for (const auto& prompt : prompts) prompt_tokens_ += std::ssize(prompt);
}

void GenerationResponse::add(SequenceOutput output) {
  completion_tokens_ += output.num_generated;
  choices_[output.sequence].output.append(std::move(output));
}

ordered_json GenerationResponse::header(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

ordered_json GenerationResponse::usage() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", completion_tokens_},
          {"total_tokens", prompt_tokens_ + completion_tokens_}};
}

bool GenerationResponse::write(const std::function<bool(std::string_view)>& write) {
  std::string part = json_line(header(kind_.object));
  part.back() = ',';
  part += "\"choices\":[";
  for (size_t i = 0; i < choices_.size(); ++i) {
    part.append(i ? "," : "").append(take_choice(i, /*chunk=*/false));
    if (part.size() < kPartBytes) continue;
    if (!write(part)) return false;
    part.clear();
  }
  return write(part.append("],\"usage\":").append(json_line(usage())).append("}"));
}

bool GenerationResponse::has_output(const Choice& choice) const {
  const auto& output = choice.output;
  return output.prompt || !output.tokens.empty() || !output.text.empty() || output.finish_reason;
}

std::string GenerationResponse::chunk(size_t sequence) {
  if (!has_output(choices_[sequence])) return "";
  std::string object = json_line(header(kind_.chunk_object));
  object.back() = ',';
  object += "\"choices\":[" + take_choice(sequence, /*chunk=*/true) + "]";
  return object + (include_usage_ ? ",\"usage\":null}" : "}");
}

std::string GenerationResponse::usage_chunk() const {
  auto object = header(kind_.chunk_object);
  object["choices"] = ordered_json::array();
  object["usage"] = usage();
  return json_line(object);
}

}  // namespace hero
