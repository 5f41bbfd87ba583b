#pragma once
// HTTP endpoints for clients of OpenAI's completions API and lm-evaluation-harness' local-completions.
#include <chrono>
#include <string>

#include "inference/server/budget.h"
#include "inference/server/completion_request.h"
#include "inference/server/engine.h"
#include "inference/server/http.h"
#include "inference/server/prompt_encoder.h"
#include "model/transformer.h"
#include "tokenizer/tokenizer.h"

namespace hero {

struct ServeOptions {
  std::string model_name;
  std::chrono::duration<double> timeout{600};  ///< per request
  RequestLimits request;
  Budget::Limits budget;
};

/// Adds the endpoints to `http`. The other arguments must outlive it.
class Endpoints {
 public:
  Endpoints(HttpServer& http, Engine& engine, const Transformer& model, const Tokenizer& tokenizer,
            const ServeMetrics& metrics, ServeOptions options);

 private:
  HttpResponse complete(const std::string& body, const ClientConnection& client);
  HttpResponse list_models() const;
  HttpResponse tokenize(const std::string& body);
  HttpResponse detokenize(const std::string& body);
  HttpResponse tokenizer_info() const;

  EngineRequest make_engine_request(const CompletionRequest& request,
                                    std::vector<std::vector<int64_t>> prompts) const;
  int64_t decoded_size(const std::vector<int64_t>& ids) const;
  RequestCost cost_of(const CompletionRequest& request, const EngineRequest& engine_request) const;
  std::string special_token(const char* name) const;

  Engine& engine_;
  const Transformer& model_;
  const Tokenizer& tokenizer_;
  const ServeMetrics& metrics_;
  const ServeOptions options_;
  const PromptEncoder encoder_;
  Budget budget_;
  int64_t start_time_;
};

}  // namespace hero
