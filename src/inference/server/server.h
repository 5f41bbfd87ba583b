#pragma once
// HTTP endpoints for clients of OpenAI's completions API and lm-evaluation-harness' local-completions.
#include <chrono>
#include <string>

#include "inference/server/completion_request.h"
#include "inference/server/engine.h"
#include "inference/server/http.h"
#include "model/transformer.h"
#include "tokenizer/tokenizer.h"

namespace hero {

struct ServeOptions {
  std::string model_name;
  std::chrono::duration<double> timeout{600};  ///< per request
  RequestLimits request;
};

/// Adds the endpoints to `http`. The other arguments must outlive it.
class Endpoints {
 public:
  Endpoints(HttpServer& http, Engine& engine, const Transformer& model, const Tokenizer& tokenizer,
            const ServeMetrics& metrics, ServeOptions options);

 private:
  HttpResponse complete(const std::string& body, const ClientConnection& client) const;
  HttpResponse list_models() const;
  HttpResponse tokenize(const std::string& body) const;
  HttpResponse detokenize(const std::string& body) const;
  HttpResponse tokenizer_info() const;

  std::vector<int64_t> encode(const Prompt& prompt, size_t index) const;
  EngineRequest make_engine_request(const CompletionRequest& request) const;
  std::string special_token(const char* name) const;

  Engine& engine_;
  const Transformer& model_;
  const Tokenizer& tokenizer_;
  const ServeMetrics& metrics_;
  const ServeOptions options_;
  int64_t start_time_;
};

}  // namespace hero
