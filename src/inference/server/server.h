#pragma once
// HTTP endpoints for clients of OpenAI's completions and chat completions APIs and lm-evaluation-harness'
// local-completions.
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "inference/chat_template.h"
#include "inference/end_of_turn.h"
#include "inference/server/budget.h"
#include "inference/server/chat_request.h"
#include "inference/server/completion_request.h"
#include "inference/server/engine.h"
#include "inference/server/generation_response.h"
#include "inference/server/http.h"
#include "inference/server/prompt_encoder.h"
#include "model/transformer.h"
#include "tokenizer/tokenizer.h"

namespace hero {

struct ServeOptions {
  std::string model_name;
  std::vector<int64_t> end_tokens;             ///< that end a completion
  std::chrono::duration<double> timeout{600};  ///< per request
  RequestLimits request;
  Budget::Limits budget;
};

/// How the served model talks.
struct ServedChat {
  std::unique_ptr<ChatTemplate> chat_template;  ///< null: none
  EndOfTurn end;
  std::string unavailable;  ///< without a template: the error of chat requests
};

/// Adds the endpoints to `http`. The other arguments must outlive it.
class Endpoints {
 public:
  Endpoints(HttpServer& http, Engine& engine, const Transformer& model, const Tokenizer& tokenizer,
            const ServedChat& chat, const ServeMetrics& metrics, ServeOptions options);

 private:
  static constexpr size_t kSmallBody = 64 << 10;  // bytes

  HttpResponse complete(std::string body, const ClientConnection& client);
  HttpResponse chat(std::string body, const ClientConnection& client);
  HttpResponse generate(EngineRequest request, const RequestCost& cost,
                        const std::shared_ptr<GenerationResponse>& response, bool include_usage,
                        const ClientConnection& client);
  HttpResponse list_models() const;
  HttpResponse tokenize(std::string body);
  std::vector<int32_t> encode_special_or_text(const std::string& text) const;
  HttpResponse detokenize(std::string body);
  HttpResponse tokenizer_info() const;

  // Parses a body and returns read(value). Large bodies are parsed one at a time: their JSON values need many
  // times their size.
  template <class Read>
  auto parse(std::string body, const Read& read) {
    std::unique_lock lock(parsing_, std::defer_lock);
    if (body.size() > kSmallBody) lock.lock();
    const nlohmann::json value = parse_body(std::exchange(body, {}));
    return read(value);
  }
  void check_model(const std::string& model) const;
  Clock::time_point deadline() const;
  std::vector<int64_t> render(const ChatRequest& request, Clock::time_point end);
  std::vector<std::vector<int64_t>> encode(const CompletionRequest& request, Clock::time_point deadline);
  EngineRequest make_engine_request(const CompletionRequest& request,
                                    std::vector<std::vector<int64_t>> prompts) const;
  int64_t decoded_size(const std::vector<int64_t>& ids) const;
  RequestCost cost_of(const CompletionRequest& request, const EngineRequest& engine_request) const;
  std::string special_token(const char* name) const;

  Engine& engine_;
  const Transformer& model_;
  const Tokenizer& tokenizer_;
  const ServedChat& chat_;
  const ServeMetrics& metrics_;
  const ServeOptions options_;
  const PromptEncoder encoder_;
  Budget budget_;
  std::mutex parsing_;
  int64_t start_time_;
};

}  // namespace hero
