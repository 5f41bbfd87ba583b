#include "inference/server/server.h"

#include <random>

#include "inference/server/completion_response.h"
#include "io/json.h"

namespace hero {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using namespace std::chrono_literals;

constexpr auto kPollInterval = 100ms;      // between checks for a disconnected client
constexpr int64_t kTokenIdBytes = 8;       // of a token id as JSON, at most one per byte of text
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

HttpResponse json_response(const ordered_json& value) { return {.body = json_line(value)}; }

// A special token in tokenizer_config.json: a string, or an object with the key "content".
std::string token_content(const json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end()) return "";
  const json& value = found->is_object() && found->contains("content") ? (*found)["content"] : *found;
  return value.is_string() ? value.get<std::string>() : "";
}

json tokenizer_config(const Tokenizer& tokenizer) {
  const auto found = tokenizer.companions().find("tokenizer_config.json");
  if (found == tokenizer.companions().end()) return json::object();
  const json config = parse_json_or_null(found->second);
  return config.is_object() ? config : json::object();
}

bool write_sse(const std::function<bool(std::string_view)>& write, const std::string& data) {
  return data.empty() || write("data: " + data + "\n\n");
}

// Streams the output as server-sent events. Returns whether the stream is complete.
bool stream_output(RequestOutput& output, CompletionResponse& response, bool include_usage,
                   const ClientConnection& client, const std::function<bool(std::string_view)>& write) {
  try {
    while (!output.done()) {
      for (const auto& sequence_output : output.wait(kPollInterval)) {
        response.add(sequence_output);
        if (!write_sse(write, response.chunk(sequence_output.sequence))) return false;
      }
      if (!output.done() && client.disconnected()) return false;
    }
  } catch (const ApiError& e) {
    write_sse(write, error_json(e));
    return true;
  }
  return (!include_usage || write_sse(write, response.usage_chunk())) && write_sse(write, "[DONE]");
}

}  // namespace

Endpoints::Endpoints(HttpServer& http, Engine& engine, const Transformer& model, const Tokenizer& tokenizer,
                     const ServeMetrics& metrics, ServeOptions options)
    : engine_(engine),
      model_(model),
      tokenizer_(tokenizer),
      metrics_(metrics),
      options_(std::move(options)),
      encoder_(tokenizer, model.config().model.vocab_size, model.config().model.max_position_embeddings),
      budget_(options_.budget),
      start_time_(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())) {
  using Body = const std::string&;
  using Client = const ClientConnection&;
  http.get("/health", [](Body, Client) { return json_response({{"status", "ok"}}); },
           {.open = true, .always = true});
  const char* const metrics_type = "text/plain; version=0.0.4; charset=utf-8";
  http.get("/metrics",
           [=, this](Body, Client) { return HttpResponse{.body = metrics_.text(), .type = metrics_type}; },
           {.always = true});
  http.get("/v1/models", [this](Body, Client) { return list_models(); });
  http.get("/tokenizer_info", [this](Body, Client) { return tokenizer_info(); });
  http.post("/tokenize", [this](Body body, Client) { return tokenize(body); });
  http.post("/detokenize", [this](Body body, Client) { return detokenize(body); });
  http.post("/v1/completions", [this](Body body, Client client) { return complete(body, client); });
}

HttpResponse Endpoints::list_models() const {
  return json_response({{"object", "list"},
                        {"data",
                         {{{"id", options_.model_name},
                           {"object", "model"},
                           {"created", start_time_},
                           {"owned_by", "hero-moe"},
                           {"max_model_len", model_.config().model.max_position_embeddings}}}}});
}

// "" for none.
std::string Endpoints::special_token(const char* name) const {
  std::string token = token_content(tokenizer_config(tokenizer_), name);
  if (!token.empty()) return token;
  const int32_t id = std::string_view(name) == "eos_token"   ? tokenizer_.eos_id()
                     : std::string_view(name) == "bos_token" ? tokenizer_.bos_id()
                                                             : -1;
  return id < 0 ? "" : tokenizer_.piece(id);
}

HttpResponse Endpoints::tokenizer_info() const {
  ordered_json info{{"tokenizer_class", tokenizer_.file_name() == std::string("tokenizer.json")
                                            ? "PreTrainedTokenizerFast"
                                            : "SentencePiece"}};
  for (const char* const name : {"bos_token", "eos_token", "pad_token"}) {
    const std::string token = special_token(name);
    info[name] = token.empty() ? ordered_json() : ordered_json(token);
  }
  info["vocab_size"] = tokenizer_.vocab_size();
  info["model_max_length"] = model_.config().model.max_position_embeddings;
  const auto jinja = tokenizer_.companions().find("chat_template.jinja");
  const std::string chat_template = jinja == tokenizer_.companions().end()
                                        ? token_content(tokenizer_config(tokenizer_), "chat_template")
                                        : jinja->second;
  info["chat_template"] = chat_template.empty() ? ordered_json() : ordered_json(chat_template);
  return json_response(info);
}

HttpResponse Endpoints::tokenize(const std::string& body) {
  auto held = budget_.reserve_for_parsing(body.size());
  const json request = parse_body(body);
  reject_unknown_fields(request, {"model", "prompt", "add_special_tokens"});
  const json prompt = request.value("prompt", json());
  if (!prompt.is_string()) reject_field("prompt", prompt, "a string");
  const json special = request.value("add_special_tokens", json());
  if (!special.is_boolean() && !special.is_null())
    reject_field("add_special_tokens", special, "true or false");
  const auto text = prompt.get<std::string>();
  held.reset();
  held = budget_.reserve({.bytes = kTokenIdBytes * std::ssize(text)});
  // SentencePiece never encodes text to control tokens, but clients look up their ids this way.
  ordered_json ids = ordered_json::array();
  if (text == special_token("eos_token") && tokenizer_.eos_id() >= 0) {
    ids.push_back(tokenizer_.eos_id());
  } else if (tokenizer_.bos_id() >= 0 && text == tokenizer_.piece(tokenizer_.bos_id())) {
    ids.push_back(tokenizer_.bos_id());
  } else {
    for (const int32_t id : tokenizer_.encode(text)) ids.push_back(id);
  }
  const size_t count = ids.size();
  return json_response({{"tokens", std::move(ids)},
                        {"count", count},
                        {"max_model_len", model_.config().model.max_position_embeddings}});
}

HttpResponse Endpoints::detokenize(const std::string& body) {
  auto held = budget_.reserve_for_parsing(body.size());
  const json request = parse_body(body);
  reject_unknown_fields(request, {"model", "tokens"});
  const json tokens = request.value("tokens", json());
  if (tokens.is_array() && tokens.empty()) return json_response({{"prompt", ""}});
  const auto ids = token_ids(tokens, "tokens");
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < tokenizer_.vocab_size()) continue;
    reject_field("tokens[" + std::to_string(i) + "]", ids[i],
                 "an id from 0 to " + std::to_string(tokenizer_.vocab_size() - 1));
  }
  held.reset();
  held = budget_.reserve({.bytes = decoded_size(ids)});
  return json_response({{"prompt", decode_text(tokenizer_, ids)}});
}

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

// Size of the text of `ids` as JSON.
int64_t Endpoints::decoded_size(const std::vector<int64_t>& ids) const {
  int64_t size = 0;
  for (const int64_t id : ids) {
    if (id < tokenizer_.vocab_size()) size += escaped_size(tokenizer_.bytes(static_cast<int32_t>(id)));
  }
  return size;
}

RequestCost Endpoints::cost_of(const CompletionRequest& request, const EngineRequest& engine_request) const {
  std::vector<PromptSize> sizes;
  for (const auto& ids : engine_request.prompts) {
    sizes.push_back({.tokens = std::ssize(ids), .echoed_bytes = request.echo ? decoded_size(ids) : 0});
  }
  return completion_cost(request, sizes, engine_request.sampling.max_tokens);
}

HttpResponse Endpoints::complete(const std::string& body, const ClientConnection& client) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.timeout);
  auto held = budget_.reserve_for_parsing(body.size());
  const auto request = parse_completion_request(parse_body(body), options_.request);
  if (!request.model.empty() && request.model != options_.model_name) {
    throw ApiError(404,
                   "model: found " + format_value(request.model) + ", expected " +
                       format_value(options_.model_name) + ", the served model",
                   "model", "model_not_found");
  }
  held.reset();
  held = budget_.reserve({.bytes = text_bytes(request)});  // while the text is tokenized
  auto engine_request = make_engine_request(request, encoder_.encode(request, deadline));
  engine_request.deadline = deadline;
  held.reset();
  held = budget_.reserve(cost_of(request, engine_request));
  auto response =
      std::make_shared<CompletionResponse>(request, engine_request.prompts, tokenizer_, options_.model_name);
  const auto running = std::make_shared<CancelOnExit>(engine_.submit(std::move(engine_request)));
  if (request.stream) {
    HttpResponse http_response{
        .type = "text/event-stream", .headers = {{"Cache-Control", "no-cache"}}, .held = held};
    http_response.stream = [=, &client, usage = request.include_usage](const auto& write) {
      return stream_output(*running->output, *response, usage, client, write);
    };
    return http_response;
  }
  while (!running->output->done()) {
    for (const auto& sequence_output : running->output->wait(kPollInterval)) response->add(sequence_output);
    if (!running->output->done() && client.disconnected()) return {.status = kClientClosedRequest};
  }
  return {.body = response->complete(), .held = held};
}

}  // namespace hero
