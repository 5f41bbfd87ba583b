#include "tokenizer/sentencepiece_model.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include "io/error.h"
#include "tokenizer/character_map.h"
#include "tokenizer/protobuf.h"
#include "tokenizer/sentencepiece_pieces.h"

namespace hero {

namespace {

using Model = SentencePieceModel;

// The value of an enum, whose values are 1 to `last`.
template <typename Enum>
Enum enumerator(const ProtobufMessage& message, Enum last) {
  const uint64_t number = message.number();
  if (number < 1 || number > static_cast<uint64_t>(last)) throw MalformedProtobuf();
  return static_cast<Enum>(number);
}

// Fields that occur once: parsers of protobuf merge or replace earlier values.
class Once {
 public:
  void see(uint64_t field) {
    if (field >= 64) return;
    if (seen_ >> field & 1) throw MalformedProtobuf();
    seen_ |= uint64_t{1} << field;
  }

 private:
  uint64_t seen_ = 0;
};

Model::Piece read_piece(std::string_view bytes) {
  Model::Piece piece;
  Once once;
  for (ProtobufMessage message(bytes); message.next();) {
    once.see(message.field());
    if (message.field() == 1) piece.text = message.bytes();
    if (message.field() == 2) piece.score = message.fixed_float();
    if (message.field() == 3) piece.type = enumerator(message, Model::Type::byte);
  }
  return piece;
}

Model::Kind read_kind(std::string_view trainer_spec) {
  std::optional<Model::Kind> kind;
  for (ProtobufMessage message(trainer_spec); message.next();) {
    if (message.field() != 3) continue;
    if (kind) throw MalformedProtobuf();
    kind = enumerator(message, Model::Kind::character);
  }
  return kind.value_or(Model::Kind::unigram);
}

void check_normalizer(std::string_view spec, const std::string& where) {
  Once once;
  for (ProtobufMessage message(spec); message.next();) {
    once.see(message.field());
    if (message.field() != 2 || message.bytes().empty()) continue;
    if (const char* const defect = find_character_map_defect(message.bytes())) {
      throw UserError(where + ".precompiled_charsmap: found " + defect +
                      ", expected a map written by SentencePiece");
    }
  }
}

Model parse(const std::string& bytes, const std::string& name) {
  Model model;
  Once once;
  for (ProtobufMessage message(bytes); message.next();) {
    if (message.field() != 1) once.see(message.field());
    if (message.field() == 1) model.pieces.push_back(read_piece(message.bytes()));
    if (message.field() == 2) model.kind = read_kind(message.bytes());
    if (message.field() == 3) check_normalizer(message.bytes(), name + ": normalizer_spec");
    if (message.field() == 5) check_normalizer(message.bytes(), name + ": denormalizer_spec");
  }
  if (model.pieces.empty()) throw MalformedProtobuf();
  return model;
}

}  // namespace

SentencePieceModel read_sentencepiece_model(const std::string& bytes, const std::string& name) {
  if (bytes.size() > std::numeric_limits<int32_t>::max()) reject_sentencepiece_model(bytes, name);
  try {
    auto model = parse(bytes, name);
    check_pieces(model, name);
    return model;
  } catch (const MalformedProtobuf&) {
    reject_sentencepiece_model(bytes, name);
  }
}

void reject_sentencepiece_model(const std::string& bytes, const std::string& name) {
  throw UserError(name + ": found " + std::to_string(bytes.size()) +
                  " bytes that are not a SentencePiece model, expected a model written by hero data "
                  "tokenizer or SentencePiece, or a Hugging Face tokenizer.json");
}

std::string with_spaces(std::string piece) {
  for (std::size_t at = 0; (at = piece.find(kSpaceSymbol, at)) != piece.npos; ++at)
    piece.replace(at, kSpaceSymbol.size(), 1, ' ');
  return piece;
}

}  // namespace hero
