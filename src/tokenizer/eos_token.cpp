#include "tokenizer/eos_token.h"

#include "io/file_io.h"
#include "io/json_node.h"

namespace hero {

namespace fs = std::filesystem;

int32_t eos_token_id(const BpeTokenizer& tokenizer, const std::map<std::string, std::string>& companions,
                     const fs::path& path) {
  if (const auto config = companions.find("tokenizer_config.json"); config != companions.end()) {
    const std::string file = path.string() + ", " + config->first;
    const auto parsed = parse_json(config->second, {file});
    const JsonNode root(parsed, file);
    if (root.has("eos_token") && !root.at("eos_token").null()) {
      const auto token = root.at("eos_token");
      const std::string content = token.has("content") ? token.at("content").text() : token.text();
      if (const auto id = tokenizer.id_of(content)) return *id;
      token.reject("a token of tokenizer.json");
    }
  }
  if (path.filename() == "tokenizer.json") {
    for (const char* const name : {"generation_config.json", "config.json"}) {
      const std::string file = (path.parent_path() / name).string();
      if (!fs::is_regular_file(file)) continue;
      const auto parsed = parse_json(read_file(file), {file});
      const JsonNode root(parsed, file);
      if (!root.has("eos_token_id") || root.at("eos_token_id").null()) continue;
      const auto ids = root.at("eos_token_id");
      const bool several = ids.value().is_array() && !ids.value().empty();
      return static_cast<int32_t>((several ? ids.items()[0] : ids).integer(0, tokenizer.vocab_size() - 1));
    }
  }
  return tokenizer.eos_id();
}

}  // namespace hero
