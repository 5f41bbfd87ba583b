#include "tokenizer/tokenizer_json.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "io/error.h"
#include "io/json_node.h"
#include "io/one_line.h"

namespace hero {

namespace {

constexpr int64_t kMostIds = 1 << 24;
constexpr int64_t kMostUnusedIds = 1 << 20;  // besides as many as there are pieces; each takes memory
constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void unsupported(const JsonNode& node, const std::string& expected) {
  node.reject(expected + "; use hero_moe.data for other tokenizers");
}

std::string type_of(const JsonNode& node) { return node.null() ? "null" : node.at("type").text(); }

void read_normalizer(const JsonNode& node, std::vector<TextNormalizer::Form>& forms) {
  using Form = TextNormalizer::Form;
  static const std::pair<const char*, Form> kForms[] = {{"NFC", Form::nfc},
                                                        {"NFD", Form::nfd},
                                                        {"NFKC", Form::nfkc},
                                                        {"NFKD", Form::nfkd},
                                                        {"Lowercase", Form::lowercase}};
  if (node.null()) return;
  const std::string type = type_of(node);
  if (type == "Sequence") {
    node.check_keys({"type", "normalizers"});
    for (const auto& inner : node.at("normalizers").items()) read_normalizer(inner, forms);
    return;
  }
  for (const auto& [name, form] : kForms) {
    if (type != name) continue;
    node.check_keys({"type"});
    forms.push_back(form);
    return;
  }
  unsupported(node.at("type"), "NFC, NFD, NFKC, NFKD, Lowercase or Sequence");
}

PreTokenizer::Behavior read_behavior(const JsonNode& node) {
  using Behavior = PreTokenizer::Behavior;
  const std::string name = node.text();
  if (name == "Isolated") return Behavior::isolated;
  if (name == "Removed") return Behavior::removed;
  if (name == "Contiguous") return Behavior::contiguous;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  node.reject("Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext");
}

std::string escaped(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c))) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

class PreTokenizerReader {
 public:
  PreTokenizerReader(const std::string& file, PreTokenizer& into) : file_(file), into_(into) {}

  void read(const JsonNode& node) {
    const std::string type = type_of(node);
    if (type == "Sequence") {
      node.check_keys({"type", "pretokenizers"});
      for (const auto& inner : node.at("pretokenizers").items()) read(inner);
      return;
    }
    if (bytes_) unsupported(node.at("type"), "nothing after ByteLevel");
    if (type == "Split") {
      split(node);
    } else if (type == "ByteLevel") {
      byte_level(node);
    } else if (type == "Digits") {
      node.check_keys({"type", "individual_digits"});
      const bool single = node.at("individual_digits").flag();
      into_.add_split(CharacterSet("[:N:]"),
                      single ? PreTokenizer::Behavior::isolated : PreTokenizer::Behavior::contiguous, false);
    } else if (type == "Punctuation") {
      node.check_keys({"type", "behavior"});
      // tokenizers uses the punctuation of Unicode 8.0, two characters of which are symbols today.
      into_.add_split(
          CharacterSet("[[[:P:]&[:age=8.0:]][$+<=>\\^`|~\\u166D\\U000111C9]]"),
          node.has("behavior") ? read_behavior(node.at("behavior")) : PreTokenizer::Behavior::isolated,
          false);
    } else {
      const bool known = node.has("type");
      unsupported(known ? node.at("type") : node, "Split, ByteLevel, Digits, Punctuation or Sequence");
    }
  }
  bool bytes() const { return bytes_; }

 private:
  void split(const JsonNode& node) {
    node.check_keys({"type", "pattern", "behavior", "invert"});
    const auto pattern = node.at("pattern");
    pattern.check_keys({"Regex", "String"});
    const bool regex = pattern.has("Regex");
    const std::string text = pattern.at(regex ? "Regex" : "String").text();
    into_.add_split(Regex(regex ? text : escaped(text), file_ + ": pre_tokenizer"),
                    read_behavior(node.at("behavior")), node.at("invert").flag());
  }
  void byte_level(const JsonNode& node) {
    node.check_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (node.at("add_prefix_space").flag()) into_.add_prefix_space();
    if (!node.has("use_regex") || node.at("use_regex").flag())
      into_.add_split(Regex(kGpt2Words, file_), PreTokenizer::Behavior::isolated, false);
    bytes_ = true;
  }

  const std::string& file_;
  PreTokenizer& into_;
  bool bytes_ = false;
};

void check_post_processor(const JsonNode& node) {
  if (node.null()) return;
  const std::string type = type_of(node);
  if (type == "Sequence") {
    for (const auto& inner : node.at("processors").items()) check_post_processor(inner);
  } else if (type != "ByteLevel" && type != "TemplateProcessing" && type != "RobertaProcessing" &&
             type != "BertProcessing") {
    unsupported(node.at("type"),
                "ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing or Sequence");
  }
}

// UserError if an unsupported feature is enabled.
void check_disabled(const JsonNode& model, const char* key) {
  if (!model.has(key)) return;
  const auto node = model.at(key);
  const auto& value = node.value();
  const bool disabled = value.is_null() || value == "" || value == false || (value.is_number() && value == 0);
  if (!disabled) unsupported(node, "null");
}

void read_merges(const JsonNode& node, TokenizerJson& json) {
  const auto id_of = [&](const JsonNode& merge, const std::string& piece) {
    const auto found = json.vocab.find(piece);
    if (found == json.vocab.end())
      merge.reject("pieces and a merge result in model.vocab (\"" + one_line(piece) + "\" is missing)");
    return found->second;
  };
  for (const auto& merge : node.items()) {
    std::string left, right;
    if (merge.value().is_string()) {
      const std::string both = merge.text();
      if (both.starts_with("#version")) continue;
      const auto space = both.find(' ');
      if (space == both.npos || both.find(' ', space + 1) != both.npos)
        merge.reject("two pieces and a space");
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else {
      const auto parts = merge.items();
      if (parts.size() != 2) merge.reject("two pieces");
      left = parts[0].text();
      right = parts[1].text();
    }
    json.merges.push_back({id_of(merge, left), id_of(merge, right), id_of(merge, left + right)});
  }
}

void read_model(const JsonNode& model, TokenizerJson& json) {
  // Old files have no type.
  if (model.has("type") && model.at("type").text() != "BPE") unsupported(model.at("type"), "\"BPE\"");
  model.check_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                    "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  for (const char* const key :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"})
    check_disabled(model, key);
  const auto optional_flag = [&](const char* key) {
    return model.has(key) && !model.at(key).null() && model.at(key).flag();
  };
  json.fuse_unknown = optional_flag("fuse_unk");
  json.ignore_merges = optional_flag("ignore_merges");
  if (model.has("unk_token") && !model.at("unk_token").null()) json.unknown = model.at("unk_token").text();

  const auto vocab = model.at("vocab");
  if (!vocab.value().is_object() || vocab.value().empty()) vocab.reject("an object of pieces and their ids");
  const auto count = static_cast<int64_t>(vocab.value().size());
  const int64_t most = std::min(kMostIds, 2 * count + kMostUnusedIds) - 1;
  std::unordered_map<int32_t, const std::string*> pieces;
  for (const auto& [piece, value] : vocab.value().items()) {
    const auto id = static_cast<int32_t>(vocab.at(piece).integer(0, most));
    const auto [other, fresh] = pieces.emplace(id, &json.vocab.emplace(piece, id).first->first);
    if (!fresh) vocab.at(piece).reject("a different id than \"" + one_line(*other->second) + "\"");
  }
  read_merges(model.at("merges"), json);
}

// Assigns ids like tokenizers, which ignores the ids in the file: tokens of the model keep their id, others
// follow after the number of pieces of the model.
void read_added(const JsonNode& node, TokenizerJson& json) {
  auto next = static_cast<int32_t>(json.vocab.size());
  std::set<int32_t> taken;
  for (const auto& [piece, id] : json.vocab) {
    if (id >= next) taken.insert(id);
  }
  std::unordered_map<std::string, std::size_t> known;
  for (const auto& item : node.items()) {
    item.check_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.content = item.at("content").text();
    token.single_word = item.at("single_word").flag();
    token.lstrip = item.at("lstrip").flag();
    token.rstrip = item.at("rstrip").flag();
    token.normalized = item.at("normalized").flag();
    token.special = item.at("special").flag();
    if (token.content.empty()) continue;
    if (known.contains(token.content)) item.at("content").reject("every token once");
    const auto in_model = json.vocab.find(token.content);
    const bool fresh = in_model == json.vocab.end();
    token.id = fresh ? next++ : in_model->second;
    if (item.at("id").integer(0, kMostIds - 1) != token.id || (fresh && taken.contains(token.id))) {
      item.at("id").reject(std::to_string(token.id) +
                           (fresh ? ", the next id after model.vocab" : ", as in model.vocab"));
    }
    known.emplace(token.content, json.added.size());
    json.added.push_back(std::move(token));
  }
}

}  // namespace

TokenizerJson read_tokenizer_json(const std::string& text, const std::string& file) {
  const auto parsed = parse_json(text, {file});
  const JsonNode root(parsed, file);
  TokenizerJson json;
  if (!root.has("model")) {
    throw UserError(file +
                    ": found JSON without a \"model\", expected a SentencePiece model or a Hugging Face "
                    "tokenizer.json");
  }
  read_model(root.at("model"), json);
  root.check_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                   "post_processor", "decoder", "model"});
  if (root.has("version") && root.at("version").text() != "1.0") root.at("version").reject("\"1.0\"");
  for (const char* const key : {"truncation", "padding"}) {
    if (root.has(key) && !root.at(key).null())
      root.at(key).reject("null: documents are not truncated or padded");
  }
  if (root.has("normalizer")) read_normalizer(root.at("normalizer"), json.normalizer);
  PreTokenizerReader reader(file, json.pre_tokenizer);
  const auto pre_tokenizer = root.at("pre_tokenizer");
  if (!pre_tokenizer.null()) reader.read(pre_tokenizer);
  if (!reader.bytes()) unsupported(pre_tokenizer, "ByteLevel, alone or last in a Sequence");
  if (root.has("post_processor")) check_post_processor(root.at("post_processor"));
  const auto decoder = root.at("decoder");
  if (type_of(decoder) != "ByteLevel")
    unsupported(decoder.null() ? decoder : decoder.at("type"), "\"ByteLevel\"");
  if (root.has("added_tokens")) read_added(root.at("added_tokens"), json);
  return json;
}

}  // namespace hero
