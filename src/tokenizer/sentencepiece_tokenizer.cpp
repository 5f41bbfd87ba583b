#include "tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <array>

#include "io/error.h"
#include "io/utf8.h"
#include "tokenizer/sentencepiece_model.h"

namespace hero {

namespace {

constexpr std::size_t kLongestWord = 1 << 16;  // longer words are split between characters

std::size_t byte_pair(char left, char right) {
  return static_cast<std::size_t>(static_cast<unsigned char>(left)) << 8 | static_cast<unsigned char>(right);
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(const std::string& model, const std::string& name)
    : pieces_(std::make_unique<sentencepiece::SentencePieceProcessor>()), name_(name) {
  const auto parsed = read_sentencepiece_model(model, name);  // rejects what the library crashes on
  if (!pieces_->LoadFromSerializedProto(model).ok()) reject_sentencepiece_model(model, name);
  vocab_size_ = pieces_->GetPieceSize();
  eos_id_ = pieces_->eos_id();
  inspect(parsed);
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

void SentencePieceTokenizer::inspect(const SentencePieceModel& model) {
  for (const char* const name : {"<0xE2>", "<0x96>", "<0x81>"}) {
    const int id = pieces_->PieceToId(name);
    if (pieces_->IsByte(id)) space_symbol_.push_back(id);
  }
  std::vector<AddedToken> control;
  for (int id = 0; id < vocab_size_; ++id) {
    if (pieces_->IsControl(id)) control.push_back({.content = pieces_->IdToPiece(id), .id = id});
    if (pieces_->IsByte(id) || pieces_->IsControl(id) || pieces_->IsUnknown(id)) continue;
    const std::string piece = with_spaces(pieces_->IdToPiece(id));
    for (std::size_t i = 1; i < piece.size(); ++i) adjacent_.set(byte_pair(piece[i - 1], piece[i]));
  }
  control_ = std::make_unique<AddedTokens>(std::move(control));
  const std::string probe = "  a  b\t\n\n \xEF\xAC\x81\xC2\xA0\r\n\x01\xF0\x9F\xA6\x86 ";
  std::vector<int32_t> ids;
  encode_plain(probe, ids);
  lossless_ = model.byte_fallback && model.normalization == SentencePieceModel::Normalization::none &&
              space_symbol_.size() == 3 && decode(ids) == probe;
}

void SentencePieceTokenizer::encode(std::string_view text, std::vector<int32_t>& ids,
                                    WordCache& cache) const {
  if (!lossless_) return encode_plain(text, ids);
  while (!text.empty()) {
    const std::string_view word = first_word(text);
    text.remove_prefix(word.size());
    cache.append(word, ids, [this](std::string_view w, std::vector<int32_t>& to) { encode_word(w, to); });
  }
}

void SentencePieceTokenizer::encode_conversation(std::string_view text, std::vector<int32_t>& ids,
                                                 WordCache& cache) const {
  for (const auto& section : control_->split(text)) {
    if (section.id >= 0) {
      ids.push_back(section.id);
    } else {
      encode(section.text, ids, cache);
    }
  }
}

std::string_view SentencePieceTokenizer::first_word(std::string_view text) const {
  const std::size_t limit = utf8_floor(text, kLongestWord);
  for (std::size_t i = 1; i < limit; ++i) {
    const bool inside_character = (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
    if (!inside_character && !adjacent_[byte_pair(text[i - 1], text[i])]) return text.substr(0, i);
  }
  return text.substr(0, limit);
}

void SentencePieceTokenizer::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  for (;;) {
    const std::size_t at = word.find(kSpaceSymbol);
    if (at != 0) encode_plain(word.substr(0, at), ids);
    if (at == word.npos) return;
    ids.insert(ids.end(), space_symbol_.begin(), space_symbol_.end());
    word.remove_prefix(at + kSpaceSymbol.size());
    if (word.empty()) return;
  }
}

void SentencePieceTokenizer::encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
  std::vector<int> found;
  const auto status = pieces_->Encode(text, &found);
  if (!status.ok()) throw UserError(name_ + ": encoding failed: " + status.error_message());
  ids.insert(ids.end(), found.begin(), found.end());
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  const auto status = pieces_->Decode(std::vector<int>(ids.begin(), ids.end()), &text);
  if (!status.ok()) throw UserError(name_ + ": decoding failed: " + status.error_message());
  return text;
}

std::string SentencePieceTokenizer::piece(int32_t id) const { return pieces_->IdToPiece(id); }

std::string SentencePieceTokenizer::bytes(int32_t id) const {
  if (pieces_->IsControl(id)) return "";
  const std::string& piece = pieces_->IdToPiece(id);
  if (pieces_->IsByte(id)) return {static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16))};  // <0xE4>
  if (pieces_->IsUnknown(id)) return decode(std::array{id});
  return with_spaces(piece);
}

int32_t SentencePieceTokenizer::bos_id() const { return pieces_->bos_id(); }

}  // namespace hero
