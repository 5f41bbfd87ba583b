#include "tokenizer/companions.h"

#include <cstdlib>
#include <string_view>

#include "io/file_io.h"
#include "io/json.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

// What the names of the companions begin with.
std::string companion_prefix(const fs::path& path) {
  if (fs::is_directory(path)) return (path / "").string();
  const std::string text = path.string();
  for (const std::string_view name : {"tokenizer.json", "tokenizer.model"}) {
    if (text.ends_with(name)) return text.substr(0, text.size() - name.size());
  }
  return (path.parent_path() / path.stem()).string() + ".";
}

nlohmann::json read_object(const fs::path& path) {
  if (!fs::is_regular_file(path)) return nlohmann::json::object();
  auto value = parse_json_or_null(read_file(path.string()));
  return value.is_object() ? value : nlohmann::json::object();
}

}  // namespace

std::map<std::string, std::string> read_companions(const fs::path& path) {
  std::map<std::string, std::string> companions;
  const std::string prefix = companion_prefix(path);
  for (const char* const name : kCompanions) {
    if (fs::is_regular_file(prefix + name)) companions[name] = read_file(prefix + name);
  }
  return companions;
}

std::vector<std::string> added_tokens_beyond(const fs::path& folder, int64_t vocab_size) {
  std::map<int64_t, std::string> found;
  const auto listed = read_object(folder / "added_tokens.json");
  for (const auto& [token, id] : listed.items()) {
    if (id.is_number_integer() && id >= vocab_size) found[id.get<int64_t>()] = token;
  }
  const auto config = read_object(folder / "tokenizer_config.json");
  if (const auto added = config.find("added_tokens_decoder"); added != config.end() && added->is_object()) {
    for (const auto& [id, token] : added->items()) {
      const int64_t number = std::atoll(id.c_str());
      if (number < vocab_size || !token.is_object()) continue;
      const auto content = token.value("content", nlohmann::json());
      if (content.is_string()) found[number] = content.get<std::string>();
    }
  }
  std::vector<std::string> tokens;
  for (const auto& [id, token] : found) tokens.push_back(token);
  return tokens;
}

}  // namespace hero
