// POST /v1/completions.
#include <random>

#include "inference/server/api_json.h"
#include "inference/server/completion_response.h"
#include "inference/server/server.h"
#include "io/json.h"

namespace hero {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

constexpr auto kPollInterval = 100ms;      // between checks for a disconnected client
constexpr int kClientClosedRequest = 499;  // nginx's status code, only for logs and metrics

// Cancels the request when the scope is left; no effect on a complete output.
struct CancelOnExit {
  std::shared_ptr<RequestOutput> output;
  ~CancelOnExit() { output->cancel(); }
};

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

bool write_sse(const std::function<bool(std::string_view)>& write, const std::string& data) {
  return data.empty() || write("data: " + data + "\n\n");
}

// Streams the output as server-sent events. Returns whether the stream is complete.
bool stream_output(RequestOutput& output, CompletionResponse& response, bool include_usage,
                   const ClientConnection& client, const std::function<bool(std::string_view)>& write) {
  try {
    while (!output.done()) {
      for (auto& sequence_output : output.wait(kPollInterval)) {
        const size_t sequence = sequence_output.sequence;
        response.add(std::move(sequence_output));
        if (!write_sse(write, response.chunk(sequence))) return false;
      }
      if (!output.done() && client.disconnected()) return false;
    }
  } catch (const ApiError& e) {
    write_sse(write, error_json(e));
    return true;
  }
  return (!include_usage || write_sse(write, response.usage_chunk())) && write_sse(write, "[DONE]");
}

// Waits for the complete output. Returns false if the client has disconnected.
bool collect_output(RequestOutput& output, CompletionResponse& response, const ClientConnection& client) {
  while (!output.done()) {
    for (auto& sequence_output : output.wait(kPollInterval)) response.add(std::move(sequence_output));
    if (!output.done() && client.disconnected()) return false;
  }
  return true;
}

}  // namespace

EngineRequest Endpoints::make_engine_request(const CompletionRequest& request,
                                             std::vector<std::vector<int64_t>> prompts) const {
  EngineRequest engine_request{.prompts = std::move(prompts), .n = request.n};
  engine_request.score_prompts = request.echo && request.logprobs >= 0;
  engine_request.sampling = {.max_tokens = request.max_tokens.value_or(16),
                             .temperature = request.temperature,
                             .top_k = request.top_k,
                             .top_p = request.top_p,
                             .seed = request.seed ? *request.seed : random_seed(),
                             .logprobs = request.logprobs};
  if (!request.ignore_eos && tokenizer_.eos_id() >= 0) engine_request.sampling.eos = {tokenizer_.eos_id()};
  engine_request.stop = request.stop;
  engine_request.stream = request.stream;
  return engine_request;
}

RequestCost Endpoints::cost_of(const CompletionRequest& request, const EngineRequest& engine_request) const {
  std::vector<PromptSize> sizes;
  for (const auto& ids : engine_request.prompts) {
    sizes.push_back({.tokens = std::ssize(ids), .echoed_bytes = request.echo ? decoded_size(ids) : 0});
  }
  return completion_cost(request, sizes, engine_request.sampling.max_tokens);
}

CompletionRequest Endpoints::parse_completion(std::string body) {
  auto request = parse(std::move(body), [this](const json& value) {
    return parse_completion_request(value, options_.request);
  });
  if (request.model.empty() || request.model == options_.model_name) return request;
  throw ApiError(404,
                 "model: found " + format_value(request.model) + ", expected " +
                     format_value(options_.model_name) + ", the served model",
                 "model", "model_not_found");
}

std::vector<std::vector<int64_t>> Endpoints::encode(const CompletionRequest& request,
                                                    Clock::time_point deadline) {
  const auto held = budget_.reserve({.bytes = text_bytes(request)});
  return encoder_.encode(request, deadline);
}

HttpResponse Endpoints::complete(std::string body, const ClientConnection& client) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.timeout);
  const auto request = parse_completion(std::move(body));
  auto engine_request = make_engine_request(request, encode(request, deadline));
  engine_request.deadline = deadline;
  HttpResponse http_response{.held = budget_.reserve(cost_of(request, engine_request))};
  const auto response =
      std::make_shared<CompletionResponse>(request, engine_request.prompts, tokenizer_, options_.model_name);
  const auto running = std::make_shared<CancelOnExit>(engine_.submit(std::move(engine_request)));
  if (request.stream) {
    http_response.type = "text/event-stream";
    http_response.headers = {{"Cache-Control", "no-cache"}};
    http_response.stream = [=, &client, usage = request.include_usage](const auto& write) {
      return stream_output(*running->output, *response, usage, client, write);
    };
    return http_response;
  }
  if (!collect_output(*running->output, *response, client)) return {.status = kClientClosedRequest};
  http_response.stream = [response](const auto& write) { return response->write(write); };
  return http_response;
}

}  // namespace hero
