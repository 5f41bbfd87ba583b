#include "data/token_files.h"

#include <filesystem>

#include "io/error.h"
#include "io/file_io.h"
#include "io/json_node.h"

namespace hero {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

constexpr const char* kFormat = "hero token files 1";

// The path of the file `name` in the folder of `path`. The file may come from others: no path leads out of
// its folder.
std::string beside(const std::string& path, const std::string& name) {
  if (name.empty() || name == "." || name == ".." ||
      name.find_first_of(std::string_view("/\\\0", 3)) != name.npos) {
    throw UserError(path + ": tokenizer: found " + format_value(name) +
                    ", expected the name of a file in the same folder");
  }
  return (fs::path(path).parent_path() / name).string();
}

}  // namespace

void check_one_tokenizer(const std::string& out, const std::string& written) {
  const std::string model = out + ".model", json = out + ".tokenizer.json";
  const auto present = [&](const std::string& path) { return path == written || fs::exists(path); };
  if (!present(model) || !present(json)) return;
  throw UserError(model + " and " + json +
                  ": found two tokenizers for one prefix, expected one; remove the " +
                  "other, or use another prefix");
}

void write_token_files(const std::string& out, const TokenFiles& files) {
  ordered_json object = {{"format", kFormat},
                         {"tokenizer", fs::path(files.tokenizer).filename().string()},
                         {"tokenizer_sha256", files.tokenizer_sha256},
                         {"vocab_size", files.vocab_size},
                         {"eos_id", files.eos_id}};
  for (const auto& [name, counts] : files.splits) {
    object["splits"][name] = {
        {"documents", counts.documents}, {"tokens", counts.tokens}, {"bytes", counts.bytes}};
  }
  write_file(out + ".json", object.dump(2) + "\n");
}

std::optional<TokenFiles> read_token_files(const std::string& prefix) {
  std::string out = prefix;
  if (out.ends_with(".bin") || out.ends_with(".idx")) out.resize(out.size() - 4);
  if (out.ends_with("-train") || out.ends_with("-valid")) out.resize(out.size() - 6);
  const std::string path = out + ".json";
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  const std::string bytes = read_file(path);
  if (bytes.substr(0, 64).find(kFormat) == bytes.npos)
    return std::nullopt;  // another program's file, such as a corpus
  check_one_tokenizer(out);
  const auto parsed = parse_json(bytes, {path});
  const JsonNode root(parsed, path);
  const auto count = [](const JsonNode& node, const char* key) { return node.at(key).integer(0, INT64_MAX); };
  TokenFiles files;
  files.tokenizer = beside(path, root.at("tokenizer").text());
  files.tokenizer_sha256 = root.at("tokenizer_sha256").text();
  files.vocab_size = root.at("vocab_size").integer(1, INT32_MAX);
  files.eos_id = root.at("eos_id").integer(0, files.vocab_size - 1);
  for (const std::string& name : root.at("splits").keys()) {
    const JsonNode counts = root.at("splits").at(name);
    files.splits[name] = {count(counts, "documents"), count(counts, "tokens"), count(counts, "bytes")};
  }
  return files;
}

std::optional<TokenFiles> first_token_files(const std::vector<std::string>& prefixes) {
  for (const auto& prefix : prefixes) {
    if (auto files = read_token_files(prefix)) return files;
  }
  return std::nullopt;
}

}  // namespace hero
