#include "inference/server/server.h"

#include "inference/server/api_json.h"
#include "inference/server/request_fields.h"
#include "inference/server/text_stream.h"
#include "inference/server/token_text.h"
#include "io/json.h"

namespace hero {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kTokenIdBytes = 8;  // of a token id as JSON, at most one per byte of text
constexpr size_t kTextPartBytes = 64 << 10;

HttpResponse json_response(const ordered_json& value) { return {.body = json_line(value)}; }

// The text of a JSON string, without the quotes.
std::string json_escaped(const std::string& text) {
  const std::string quoted = json_line(text);
  return quoted.substr(1, quoted.size() - 2);
}

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

}  // namespace

Endpoints::Endpoints(HttpServer& http, Engine& engine, const Transformer& model, const Tokenizer& tokenizer,
                     const ServedChat& chat, const ServeMetrics& metrics, ServeOptions options)
    : engine_(engine),
      model_(model),
      tokenizer_(tokenizer),
      chat_(chat),
      metrics_(metrics),
      options_(std::move(options)),
      encoder_(tokenizer, model.config().model.vocab_size, model.config().model.max_position_embeddings),
      budget_(options_.budget),
      start_time_(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())) {
  using Body = std::string;
  using Ignored = const std::string&;
  using Client = const ClientConnection&;
  http.get("/health", [](Ignored, Client) { return json_response({{"status", "ok"}}); },
           {.open = true, .always = true});
  const char* const metrics_type = "text/plain; version=0.0.4; charset=utf-8";
  http.get("/metrics",
           [=, this](Ignored, Client) { return HttpResponse{.body = metrics_.text(), .type = metrics_type}; },
           {.always = true});
  http.get("/v1/models", [this](Ignored, Client) { return list_models(); });
  http.get("/tokenizer_info", [this](Ignored, Client) { return tokenizer_info(); });
  http.post("/tokenize", [this](Body body, Client) { return tokenize(std::move(body)); });
  http.post("/detokenize", [this](Body body, Client) { return detokenize(std::move(body)); });
  http.post("/v1/completions",
            [this](Body body, Client client) { return complete(std::move(body), client); });
  http.post("/v1/chat/completions",
            [this](Body body, Client client) { return this->chat(std::move(body), client); });
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
  const auto* const chat = chat_.chat_template.get();
  info["chat_template"] = chat ? ordered_json(chat->jinja()) : ordered_json();
  return json_response(info);
}

HttpResponse Endpoints::tokenize(std::string body) {
  const auto text = parse(std::move(body), [this](const json& request) {
    reject_unknown_fields(request, {"model", "prompt", "add_special_tokens"});
    const RequestFields fields(request);
    check_model(fields.string("model"));
    const json* const prompt = fields.find("prompt");
    if (!prompt || !prompt->is_string()) fields.reject("prompt", prompt ? *prompt : json(), "a string");
    fields.boolean("add_special_tokens");
    return prompt->get<std::string>();
  });
  HttpResponse response{.held = budget_.reserve({.bytes = kTokenIdBytes * std::ssize(text)})};
  response.stream = [ids = encode_special_or_text(text),
                     max_length = model_.config().model.max_position_embeddings](const auto& write) {
    std::string part = "{\"tokens\":[";
    for (size_t i = 0; i < ids.size(); ++i) {
      part.append(i ? "," : "").append(std::to_string(ids[i]));
      if (part.size() < kTextPartBytes) continue;
      if (!write(part)) return false;
      part.clear();
    }
    return write(part + "],\"count\":" + std::to_string(ids.size()) +
                 ",\"max_model_len\":" + std::to_string(max_length) + "}");
  };
  return response;
}

// SentencePiece never encodes text to control tokens, but clients look up their ids this way.
std::vector<int32_t> Endpoints::encode_special_or_text(const std::string& text) const {
  if (tokenizer_.eos_id() >= 0 && text == special_token("eos_token")) return {tokenizer_.eos_id()};
  if (tokenizer_.bos_id() >= 0 && text == tokenizer_.piece(tokenizer_.bos_id())) return {tokenizer_.bos_id()};
  return tokenizer_.encode(text);
}

HttpResponse Endpoints::detokenize(std::string body) {
  auto ids = parse(std::move(body), [this](const json& request) {
    reject_unknown_fields(request, {"model", "tokens"});
    check_model(RequestFields(request).string("model"));
    const json tokens = request.value("tokens", json());
    if (tokens.is_array() && tokens.empty()) return std::vector<int64_t>();
    auto found = token_ids(tokens, "tokens");
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] < tokenizer_.vocab_size()) continue;
      reject_field("tokens[" + std::to_string(i) + "]", found[i],
                   "an id from 0 to " + std::to_string(tokenizer_.vocab_size() - 1));
    }
    return found;
  });
  HttpResponse response{.held = budget_.reserve({.bytes = decoded_size(ids)})};
  response.stream = [this, ids = std::move(ids)](const auto& write) {
    Utf8StreamDecoder decoder;
    std::string text;
    if (!write("{\"prompt\":\"")) return false;
    for (const int64_t id : ids) {
      text += decoder.add(token_bytes(tokenizer_, id));
      if (text.size() < kTextPartBytes) continue;
      if (!write(json_escaped(text))) return false;
      text.clear();
    }
    return write(json_escaped(text + decoder.flush()) + "\"}");
  };
  return response;
}

// Size of the text of `ids` as JSON.
int64_t Endpoints::decoded_size(const std::vector<int64_t>& ids) const {
  int64_t size = 0;
  for (const int64_t id : ids) {
    if (id < tokenizer_.vocab_size()) size += escaped_size(tokenizer_.bytes(static_cast<int32_t>(id)));
  }
  return size;
}

}  // namespace hero
