// POST /v1/completions and POST /v1/chat/completions.
#include <random>

#include "inference/server/api_json.h"
#include "inference/server/chat_request.h"
#include "inference/server/chat_response.h"
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
bool stream_output(RequestOutput& output, GenerationResponse& response, bool include_usage,
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
bool collect_output(RequestOutput& output, GenerationResponse& response, const ClientConnection& client) {
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
  engine_request.sampling = {
      .max_tokens = request.max_tokens.value_or(std::min<int64_t>(16, options_.request.max_tokens)),
      .temperature = request.temperature,
      .top_k = request.top_k,
      .top_p = request.top_p,
      .seed = request.seed ? *request.seed : random_seed(),
      .logprobs = request.logprobs};
  if (!request.ignore_eos) engine_request.sampling.eos = options_.end_tokens;
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

void Endpoints::check_model(const std::string& model) const {
  if (model.empty() || model == options_.model_name) return;
  throw ApiError(404,
                 "model: found " + format_value(model) + ", expected " + format_value(options_.model_name) +
                     ", the served model",
                 "model", "model_not_found");
}

std::vector<std::vector<int64_t>> Endpoints::encode(const CompletionRequest& request,
                                                    Clock::time_point deadline) {
  const auto held = budget_.reserve({.bytes = text_bytes(request)});
  return encoder_.encode(request, deadline);
}

Clock::time_point Endpoints::deadline() const {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.timeout);
}

HttpResponse Endpoints::complete(std::string body, const ClientConnection& client) {
  const auto end = deadline();
  const auto request = parse(std::move(body), [this](const json& value) {
    return parse_completion_request(value, options_.request);
  });
  check_model(request.model);
  auto engine_request = make_engine_request(request, encode(request, end));
  engine_request.deadline = end;
  const auto cost = cost_of(request, engine_request);
  const auto response =
      std::make_shared<CompletionResponse>(request, engine_request.prompts, tokenizer_, options_.model_name);
  return generate(std::move(engine_request), cost, response, request.include_usage, client);
}

// The token ids of the messages, as the chat template writes them.
std::vector<int64_t> Endpoints::render(const ChatRequest& request, Clock::time_point end) {
  if (!chat_.chat_template) throw ApiError(400, chat_.unavailable, "messages", "no_chat_template");
  const auto held = budget_.reserve({.bytes = request.message_bytes});
  std::optional<std::string> text;
  try {
    text = chat_.chat_template->render(request.messages, /*add_generation_prompt=*/true, end);
  } catch (const ChatTemplateError& error) {
    throw ApiError(400, error.what(), "messages", "chat_template");
  } catch (const RunError& error) {
    std::fprintf(stderr, "hero: serve: %s\n", error.what());
    throw ApiError(500, error.what(), "messages", "chat_template");
  }
  if (!text) throw timeout_error();
  const auto text_held = budget_.reserve({.bytes = std::ssize(*text)});
  return encoder_.encode_conversation(*text, request.completion.max_tokens.value_or(1));
}

HttpResponse Endpoints::chat(std::string body, const ClientConnection& client) {
  const auto end = deadline();
  const auto request = parse(
      std::move(body), [this](const json& value) { return parse_chat_request(value, options_.request); });
  const CompletionRequest& completion = request.completion;
  check_model(completion.model);
  auto engine_request = make_engine_request(completion, {render(request, end)});
  engine_request.deadline = end;
  const int64_t prompt_tokens = std::ssize(engine_request.prompts[0]);
  auto& sampling = engine_request.sampling;
  if (!completion.max_tokens)
    sampling.max_tokens = std::min(options_.request.max_tokens, encoder_.positions() - prompt_tokens);
  if (!completion.ignore_eos) {
    sampling.eos = chat_.end.ids;
    engine_request.stop.insert(engine_request.stop.end(), chat_.end.strings.begin(), chat_.end.strings.end());
  }
  const auto cost = chat_cost(completion, prompt_tokens, sampling.max_tokens);
  const auto response =
      std::make_shared<ChatResponse>(completion, engine_request.prompts, tokenizer_, options_.model_name);
  return generate(std::move(engine_request), cost, response, completion.include_usage, client);
}

HttpResponse Endpoints::generate(EngineRequest request, const RequestCost& cost,
                                 const std::shared_ptr<GenerationResponse>& response, bool include_usage,
                                 const ClientConnection& client) {
  HttpResponse http_response{.held = budget_.reserve(cost)};
  const bool stream = request.stream;
  const auto running = std::make_shared<CancelOnExit>(engine_.submit(std::move(request)));
  if (stream) {
    http_response.type = "text/event-stream";
    http_response.headers = {{"Cache-Control", "no-cache"}};
    http_response.stream = [=, &client](const auto& write) {
      return stream_output(*running->output, *response, include_usage, client, write);
    };
    return http_response;
  }
  if (!collect_output(*running->output, *response, client)) return {.status = kClientClosedRequest};
  http_response.stream = [response](const auto& write) { return response->write(write); };
  return http_response;
}

}  // namespace hero
