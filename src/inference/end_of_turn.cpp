#include "inference/end_of_turn.h"

#include <algorithm>

#include "io/file_io.h"
#include "io/json.h"

namespace hero {
namespace {

using nlohmann::json;

// Texts that no template contains.
constexpr const char* kAnswer = "assistant-answer-7f3a9c";
constexpr const char* kQuestion = "user-question-e81b42";

std::string without_space(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// The text of a conversation; "" if the template rejects it: some do not take every order of roles.
std::string text_of(ChatTemplate& chat, const json& messages) {
  try {
    return chat.render(messages, /*add_generation_prompt=*/false);
  } catch (const ChatTemplateError&) {
    return "";
  }
}

// What the template writes after an answer, "" if it is not found.
std::string text_after_answer(ChatTemplate& chat) {
  const json question = {{"role", "user"}, {"content", kQuestion}};
  const json answer = {{"role", "assistant"}, {"content", kAnswer}};
  const auto after = [](const std::string& text) {
    const size_t at = text.rfind(kAnswer);
    return at == text.npos ? "" : text.substr(at + std::string_view(kAnswer).size());
  };
  const std::string end = without_space(after(text_of(chat, {question, answer})));
  // Only the first line: some templates also end the document.
  if (!end.empty()) return without_space(end.substr(0, end.find('\n')));
  const std::string next = after(text_of(chat, {question, answer, question}));
  const std::string header = next.substr(0, next.find(kQuestion));
  const size_t last = header.find_last_not_of(" \t");
  // White space alone may be part of an answer.
  return without_space(header).empty() ? "" : header.substr(0, last + 1);
}

// eos_token_id of the first file that has one: an id or a list.
std::vector<int64_t> configured_ids(const std::filesystem::path& folder, int64_t vocab_size) {
  std::vector<int64_t> ids;
  for (const char* const name : {"generation_config.json", "config.json"}) {
    const auto path = folder / name;
    if (!std::filesystem::is_regular_file(path)) continue;
    const json config = parse_json_or_null(read_file(path.string()));
    if (!config.is_object()) continue;
    json found = config.value("eos_token_id", json());
    if (!found.is_array()) found = json::array({found});
    for (const json& id : found) {
      if (id.is_number_integer() && id >= 0 && id < vocab_size) ids.push_back(id.get<int64_t>());
    }
    if (!ids.empty()) return ids;
  }
  return ids;
}

std::vector<int64_t> sorted_unique(std::vector<int64_t> ids) {
  std::ranges::sort(ids);
  ids.erase(std::ranges::unique(ids).begin(), ids.end());
  return ids;
}

}  // namespace

std::vector<int64_t> end_tokens(const Tokenizer& tokenizer, const std::filesystem::path& folder) {
  auto ids = configured_ids(folder, tokenizer.vocab_size());
  if (tokenizer.eos_id() >= 0) ids.push_back(tokenizer.eos_id());
  return sorted_unique(std::move(ids));
}

EndOfTurn find_end_of_turn(ChatTemplate& chat, const Tokenizer& tokenizer,
                           const std::filesystem::path& folder) {
  EndOfTurn end;
  end.ids = end_tokens(tokenizer, folder);
  const std::string text = text_after_answer(chat);
  if (!text.empty()) {
    end.strings.push_back(text);
    const auto tokens = tokenizer.encode_conversation(text);
    // The bytes of a special token are not part of the generated text, where the string is searched.
    if (!tokens.empty() && (tokens.size() == 1 || tokenizer.bytes(tokens[0]).empty()))
      end.ids.push_back(tokens[0]);
  }
  end.ids = sorted_unique(std::move(end.ids));
  return end;
}

}  // namespace hero
