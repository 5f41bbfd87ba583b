#pragma once
// The endpoints: what clients of OpenAI's completions and lm-evaluation-harness' local-completions ask for.
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
  std::chrono::duration<double> timeout{600};  ///< of a request
  RequestLimits request;
};

/// Adds the endpoints to `http`. Everything given must outlive it.
class Endpoints {
 public:
  Endpoints(HttpServer& http, Engine& engine, const Transformer& model, const Tokenizer& tokenizer,
            const ServeMetrics& metrics, ServeOptions options);

 private:
  HttpReply complete(const std::string& body, const HttpClient& client) const;
  HttpReply list_models() const;
  HttpReply tokenize(const std::string& body) const;
  HttpReply detokenize(const std::string& body) const;
  HttpReply tokenizer_info() const;

  std::vector<int64_t> encode(const PromptText& prompt, size_t index) const;
  Task task_of(const CompletionRequest& request) const;
  std::string special_token(const char* name) const;

  Engine& engine_;
  const Transformer& model_;
  const Tokenizer& tokenizer_;
  const ServeMetrics& metrics_;
  const ServeOptions options_;
  int64_t started_;
};

}  // namespace hero
