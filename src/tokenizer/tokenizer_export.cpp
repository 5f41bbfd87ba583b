#include "tokenizer/tokenizer_export.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "io/json.h"
#include "io/utf8.h"
#include "tokenizer/sentencepiece_model.h"

namespace hero {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

using Type = SentencePieceModel::Type;
using Normalization = SentencePieceModel::Normalization;

// Positions that split `piece` into two pieces, in merge order. Two pairs can overlap in a text (x y z with
// piece = xy = yz); SentencePiece then merges the left pair, so its split comes first.
std::vector<std::size_t> split_positions(const std::string& piece,
                                         const std::unordered_map<std::string, float>& normal) {
  std::vector<std::size_t> found;
  for (std::size_t at = piece.size() - 1; at > 0; --at) {
    if (utf8_floor(piece, at) == at && normal.contains(piece.substr(0, at)) &&
        normal.contains(piece.substr(at)))
      found.push_back(at);
  }
  const auto border = [&](std::size_t length) {
    return piece.compare(0, length, piece, piece.size() - length) == 0;
  };
  for (auto& cut : found) {
    const std::size_t mirrored = piece.size() - cut;
    if (mirrored >= cut || !border(cut) || border(mirrored)) continue;
    if (const auto other = std::find(found.begin(), found.end(), mirrored); other != found.end())
      std::swap(cut, *other);
  }
  return found;
}

// By descending score, SentencePiece's merge order.
json merges_of(const SentencePieceModel& model) {
  std::unordered_map<std::string, float> normal;
  for (const auto& piece : model.pieces) {
    if (piece.type == Type::normal) normal.emplace(with_spaces(piece.text), piece.score);
  }
  std::vector<std::pair<float, std::size_t>> order;  // negative score, id
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type == Type::normal) order.emplace_back(-model.pieces[id].score, id);
  }
  std::ranges::sort(order);
  json merges = json::array();
  for (const auto& [score, id] : order) {
    const std::string piece = with_spaces(model.pieces[id].text);
    for (const std::size_t cut : split_positions(piece, normal))
      merges.push_back({piece.substr(0, cut), piece.substr(cut)});
  }
  return merges;
}

std::string json_of(const SentencePieceModel& model) {
  json vocab = json::object(), added = json::array(), unknown;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    const bool special = piece.type == Type::unknown || piece.type == Type::control;
    const std::string text = special || piece.type == Type::byte ? piece.text : with_spaces(piece.text);
    vocab[text] = id;
    if (piece.type == Type::unknown) unknown = text;
    if (special || piece.type == Type::user_defined) {
      added.push_back({{"id", id},
                       {"content", text},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", special}});
    }
  }
  json normalizer, decoders = json::array({{{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (model.normalization == Normalization::space_first) {
    normalizer = {
        {"type", "Sequence"},
        {"normalizers",
         json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpaceSymbol}}}, {"content", " "}},
                      {{"type", "Prepend"}, {"prepend", " "}}})}};
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  const json file = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer", normalizer},
                     {"pre_tokenizer", nullptr},
                     {"post_processor", nullptr},
                     {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", unknown},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", true},
                       {"ignore_merges", false},
                       {"vocab", vocab},
                       {"merges", merges_of(model)}}}};
  return file.dump(1) + "\n";
}

bool has_type(const SentencePieceModel& model, Type type) {
  return std::ranges::find(model.pieces, type, &SentencePieceModel::Piece::type) != model.pieces.end();
}

// Whether json_of encodes text as the model does.
bool has_json_form(const SentencePieceModel& model) {
  if (model.kind != SentencePieceModel::Kind::bpe || !model.byte_fallback || has_type(model, Type::unused))
    return false;
  // A space in a piece is not the space of a text, but it would be in the other file.
  if (std::ranges::any_of(model.pieces,
                          [](const auto& piece) { return piece.text.find(' ') != piece.text.npos; }))
    return false;
  // `tokenizers` would also add a space after each user-defined piece.
  return model.normalization == Normalization::none ||
         (model.normalization == Normalization::space_first && !has_type(model, Type::user_defined));
}

ordered_json new_config(const Tokenizer& tokenizer) {
  ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                         {"clean_up_tokenization_spaces", false}};
  if (tokenizer.eos_id() >= 0) config["eos_token"] = tokenizer.piece(tokenizer.eos_id());
  return config;
}

// Adds to the configuration what a SentencePiece model needs; `own`: the user's configuration.
void configure_sentencepiece(const SentencePieceModel& model, bool json_form, bool own,
                             ordered_json& config) {
  if (!json_form && own) return;
  config["tokenizer_class"] = json_form ? "PreTrainedTokenizerFast" : "SentencePieceBackend";
  config["split_special_tokens"] = true;
  if (json_form) return;
  const auto unknown = std::ranges::find(model.pieces, Type::unknown, &SentencePieceModel::Piece::type);
  config["unk_token"] = unknown->text;
}

}  // namespace

std::map<std::string, std::string> tokenizer_files(const Tokenizer& tokenizer, int64_t model_max_length) {
  auto files = tokenizer.companions();
  files[tokenizer.file_name()] = tokenizer.model();
  const auto own = files.find("tokenizer_config.json");
  ordered_json config =
      own != files.end() ? parse_ordered_json(own->second, {own->first}) : new_config(tokenizer);
  if (tokenizer.file_name() == std::string("tokenizer.model")) {
    const auto model = read_sentencepiece_model(tokenizer.model(), "tokenizer.model");
    const bool json_form = has_json_form(model);
    if (json_form) files["tokenizer.json"] = json_of(model);
    configure_sentencepiece(model, json_form, own != files.end(), config);
  }
  if (model_max_length > 0) config["model_max_length"] = model_max_length;
  files["tokenizer_config.json"] = config.dump(2) + "\n";
  return files;
}

}  // namespace hero
