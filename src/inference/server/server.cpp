#include "inference/server/server.h"

#include <random>

#include "inference/server/completion_response.h"
#include "io/strict_json.h"

namespace hero {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using namespace std::chrono_literals;

constexpr auto kPatience = 100ms;               // between two looks at whether the client is still there
constexpr int64_t kMostEchoedTokens = 1 << 20;  // whose probabilities one answer holds
constexpr int kClientGone = 499;                // nginx' word for it; nobody reads the answer

// Cancels on every way out of a scope; nothing happens to an answer that is complete.
struct Cancelling {
  std::shared_ptr<Answer> answer;
  ~Cancelling() { answer->cancel(); }
};

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

HttpReply reply_json(const ordered_json& value) { return {.body = json_line(value)}; }

// The text of an entry of tokenizer_config.json: a string, or an object with it as content.
std::string token_content(const json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end()) return "";
  const json& value = found->is_object() && found->contains("content") ? (*found)["content"] : *found;
  return value.is_string() ? value.get<std::string>() : "";
}

json tokenizer_config(const Tokenizer& tokenizer) {
  const auto found = tokenizer.companions().find("tokenizer_config.json");
  if (found == tokenizer.companions().end()) return json::object();
  const json config = json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  return config.is_object() ? config : json::object();
}

bool write_event(const std::function<bool(std::string_view)>& write, const std::string& data) {
  return data.empty() || write("data: " + data + "\n\n");
}

bool stream_events(Answer& answer, CompletionResponse& response, bool include_usage, const HttpClient& client,
                   const std::function<bool(std::string_view)>& write) {
  try {
    while (!answer.done()) {
      for (const auto& event : answer.wait(kPatience)) {
        response.add(event);
        if (!write_event(write, response.chunk(event.text))) return false;
      }
      if (!answer.done() && client.gone()) return false;
    }
  } catch (const ApiError& e) {
    write_event(write, error_json(e));
    return true;
  }
  return (!include_usage || write_event(write, response.usage_chunk())) && write_event(write, "[DONE]");
}

}  // namespace

Endpoints::Endpoints(HttpServer& http, Engine& engine, const Transformer& model, const Tokenizer& tokenizer,
                     const ServeMetrics& metrics, ServeOptions options)
    : engine_(engine),
      model_(model),
      tokenizer_(tokenizer),
      metrics_(metrics),
      options_(std::move(options)),
      started_(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())) {
  using Body = const std::string&;
  using Client = const HttpClient&;
  http.get("/health", [](Body, Client) { return reply_json({{"status", "ok"}}); }, /*open=*/true);
  http.get("/metrics", [this](Body, Client) {
    return HttpReply{.body = metrics_.text(), .type = "text/plain; version=0.0.4; charset=utf-8"};
  });
  http.get("/v1/models", [this](Body, Client) { return list_models(); });
  http.get("/tokenizer_info", [this](Body, Client) { return tokenizer_info(); });
  http.post("/tokenize", [this](Body body, Client) { return tokenize(body); });
  http.post("/detokenize", [this](Body body, Client) { return detokenize(body); });
  http.post("/v1/completions", [this](Body body, Client client) { return complete(body, client); });
}

HttpReply Endpoints::list_models() const {
  return reply_json({{"object", "list"},
                     {"data",
                      {{{"id", options_.model_name},
                        {"object", "model"},
                        {"created", started_},
                        {"owned_by", "hero-moe"},
                        {"max_model_len", model_.config().model.max_position_embeddings}}}}});
}

// "" for none.
std::string Endpoints::special_token(const char* name) const {
  std::string named = token_content(tokenizer_config(tokenizer_), name);
  if (!named.empty()) return named;
  const int32_t id = std::string_view(name) == "eos_token"   ? tokenizer_.eos_id()
                     : std::string_view(name) == "bos_token" ? tokenizer_.bos_id()
                                                             : -1;
  return id < 0 ? "" : tokenizer_.piece(id);
}

HttpReply Endpoints::tokenizer_info() const {
  ordered_json info{{"tokenizer_class", tokenizer_.file_name() == std::string("tokenizer.json")
                                            ? "PreTrainedTokenizerFast"
                                            : "SentencePiece"}};
  for (const char* const name : {"bos_token", "eos_token", "pad_token"}) {
    const std::string token = special_token(name);
    info[name] = token.empty() ? ordered_json() : ordered_json(token);
  }
  info["vocab_size"] = tokenizer_.vocab_size();
  info["model_max_length"] = model_.config().model.max_position_embeddings;
  const auto separate = tokenizer_.companions().find("chat_template.jinja");
  const std::string chat = separate == tokenizer_.companions().end()
                               ? token_content(tokenizer_config(tokenizer_), "chat_template")
                               : separate->second;
  info["chat_template"] = chat.empty() ? ordered_json() : ordered_json(chat);
  return reply_json(info);
}

HttpReply Endpoints::tokenize(const std::string& body) const {
  const json request = parse_body(body);
  refuse_unknown_fields(request, {"model", "prompt", "add_special_tokens"});
  const json prompt = request.value("prompt", json());
  if (!prompt.is_string()) refuse_field("prompt", prompt, "a string");
  const json special = request.value("add_special_tokens", json());
  if (!special.is_boolean() && !special.is_null())
    refuse_field("add_special_tokens", special, "true or false");
  const auto text = prompt.get<std::string>();
  // SentencePiece reads its control pieces from no text; but by this question clients learn their ids.
  ordered_json ids = ordered_json::array();
  if (text == special_token("eos_token") && tokenizer_.eos_id() >= 0) {
    ids.push_back(tokenizer_.eos_id());
  } else if (tokenizer_.bos_id() >= 0 && text == tokenizer_.piece(tokenizer_.bos_id())) {
    ids.push_back(tokenizer_.bos_id());
  } else {
    for (const int32_t id : tokenizer_.encode(text)) ids.push_back(id);
  }
  const size_t count = ids.size();
  return reply_json({{"tokens", std::move(ids)},
                     {"count", count},
                     {"max_model_len", model_.config().model.max_position_embeddings}});
}

HttpReply Endpoints::detokenize(const std::string& body) const {
  const json request = parse_body(body);
  refuse_unknown_fields(request, {"model", "tokens"});
  const json tokens = request.value("tokens", json());
  if (tokens.is_array() && tokens.empty()) return reply_json({{"prompt", ""}});
  const auto ids = token_ids(tokens, "tokens");
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < tokenizer_.vocab_size()) continue;
    refuse_field("tokens[" + std::to_string(i) + "]", ids[i],
                 "an id from 0 to " + std::to_string(tokenizer_.vocab_size() - 1));
  }
  return reply_json({{"prompt", text_of(tokenizer_, ids)}});
}

std::vector<int64_t> Endpoints::encode(const PromptText& prompt, size_t index) const {
  const std::string name = "prompt[" + std::to_string(index) + "]";
  if (const auto* ids = std::get_if<std::vector<int64_t>>(&prompt)) {
    const int64_t vocabulary = model_.config().model.vocab_size;
    for (const int64_t id : *ids) {
      if (id < vocabulary) continue;
      throw ApiError(400,
                     name + ": found the token id " + std::to_string(id) + ", expected 0 to " +
                         std::to_string(vocabulary - 1),
                     "prompt");
    }
    return *ids;
  }
  const auto& text = std::get<std::string>(prompt);
  const auto found = tokenizer_.encode(text);
  std::vector<int64_t> ids(found.begin(), found.end());
  if (ids.empty() && tokenizer_.eos_id() >= 0) ids.push_back(tokenizer_.eos_id());  // a document begins
  if (ids.empty()) throw ApiError(400, name + ": found no token in it, expected one at least", "prompt");
  return ids;
}

Task Endpoints::task_of(const CompletionRequest& request) const {
  const int64_t positions = model_.config().model.max_position_embeddings;
  const int64_t made = request.max_tokens.value_or(1);
  Task task;
  int64_t tokens = 0;
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    auto ids = encode(request.prompts[i], i);
    tokens += std::ssize(ids);
    if (std::ssize(ids) + made > positions) {
      throw ApiError(400,
                     "prompt[" + std::to_string(i) + "]: found " + std::to_string(ids.size()) +
                         " tokens and max_tokens = " + std::to_string(made) + ", expected at most " +
                         std::to_string(positions) + " together, the model's positions",
                     "prompt", "context_length_exceeded");
    }
    task.prompts.push_back(std::move(ids));
  }
  task.score_prompts = request.echo && request.logprobs >= 0;
  if (task.score_prompts && tokens * request.n > kMostEchoedTokens) {
    throw ApiError(400,
                   "prompt: found " + std::to_string(tokens) +
                       " tokens to echo with their probabilities n = " + std::to_string(request.n) +
                       " times, expected at most " + std::to_string(kMostEchoedTokens) + " in all",
                   "prompt");
  }
  task.n = request.n;
  task.sampling = {.max_tokens = request.max_tokens.value_or(16),
                   .temperature = request.temperature,
                   .top_k = request.top_k,
                   .top_p = request.top_p,
                   .seed = request.seed ? *request.seed : random_seed(),
                   .logprobs = request.logprobs};
  if (!request.ignore_eos && tokenizer_.eos_id() >= 0) task.sampling.eos = {tokenizer_.eos_id()};
  task.stop = request.stop;
  task.stream = request.stream;
  task.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.timeout);
  return task;
}

HttpReply Endpoints::complete(const std::string& body, const HttpClient& client) const {
  const auto request = parse_completion_request(parse_body(body), options_.request);
  if (!request.model.empty() && request.model != options_.model_name) {
    throw ApiError(404,
                   "model: found " + shown(request.model) + ", expected " + shown(options_.model_name) +
                       ", the one that is served",
                   "model", "model_not_found");
  }
  auto task = task_of(request);
  auto response =
      std::make_shared<CompletionResponse>(request, task.prompts, tokenizer_, options_.model_name);
  const auto running = std::make_shared<Cancelling>(engine_.submit(std::move(task)));
  if (request.stream) {
    HttpReply reply{.type = "text/event-stream", .headers = {{"Cache-Control", "no-cache"}}};
    reply.stream = [=, &client, usage = request.include_usage](const auto& write) {
      return stream_events(*running->answer, *response, usage, client, write);
    };
    return reply;
  }
  while (!running->answer->done()) {
    for (const auto& event : running->answer->wait(kPatience)) response->add(event);
    if (!running->answer->done() && client.gone()) return {.status = kClientGone};
  }
  return {.body = response->whole()};
}

}  // namespace hero
