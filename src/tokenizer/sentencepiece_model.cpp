#include "tokenizer/sentencepiece_model.h"

#include <cstdint>
#include <cstring>
#include <limits>
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

struct TrainerSpec {
  Model::Kind kind = Model::Kind::unigram;
  bool treat_whitespace_as_suffix = false, byte_fallback = false;
};

TrainerSpec read_trainer_spec(std::string_view bytes) {
  TrainerSpec spec;
  Once once;
  for (ProtobufMessage message(bytes); message.next();) {
    const uint64_t field = message.field();
    if (field == 3 || field == 24 || field == 35) once.see(field);
    if (field == 3) spec.kind = enumerator(message, Model::Kind::character);
    if (field == 24) spec.treat_whitespace_as_suffix = message.number() != 0;
    if (field == 35) spec.byte_fallback = message.number() != 0;
  }
  return spec;
}

// normalizer_spec or denormalizer_spec, with SentencePiece's defaults.
struct Normalizer {
  std::string_view map;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

Normalizer read_normalizer(std::string_view spec, const std::string& where) {
  Normalizer normalizer;
  Once once;
  for (ProtobufMessage message(spec); message.next();) {
    once.see(message.field());
    if (message.field() == 2) normalizer.map = message.bytes();
    if (message.field() == 3) normalizer.add_dummy_prefix = message.number() != 0;
    if (message.field() == 4) normalizer.remove_extra_whitespaces = message.number() != 0;
    if (message.field() == 5) normalizer.escape_whitespaces = message.number() != 0;
  }
  if (const char* const defect =
          normalizer.map.empty() ? nullptr : find_character_map_defect(normalizer.map)) {
    throw UserError(where + ".precompiled_charsmap: found " + defect +
                    ", expected a map written by SentencePiece");
  }
  return normalizer;
}

Model parse(const std::string& bytes, const std::string& name) {
  Model model;
  TrainerSpec trainer;
  Normalizer before, after;
  Once once;
  for (ProtobufMessage message(bytes); message.next();) {
    if (message.field() != 1) once.see(message.field());
    if (message.field() == 1) model.pieces.push_back(read_piece(message.bytes()));
    if (message.field() == 2) trainer = read_trainer_spec(message.bytes());
    if (message.field() == 3) before = read_normalizer(message.bytes(), name + ": normalizer_spec");
    if (message.field() == 5) after = read_normalizer(message.bytes(), name + ": denormalizer_spec");
  }
  if (model.pieces.empty()) throw MalformedProtobuf();
  model.kind = trainer.kind;
  model.byte_fallback = trainer.byte_fallback;
  const bool space_first = before.add_dummy_prefix && !trainer.treat_whitespace_as_suffix;
  if (model.kind == Model::Kind::word && !space_first) {
    throw UserError(name +
                    ": found model_type word without a space before the first word, expected "
                    "add_dummy_prefix and not treat_whitespace_as_suffix");  // version 0.1.97 fails on text
  }
  if (before.map.empty() && after.map.empty() && !before.remove_extra_whitespaces &&
      before.escape_whitespaces) {
    if (!before.add_dummy_prefix) model.normalization = Model::Normalization::none;
    if (space_first) model.normalization = Model::Normalization::space_first;
  }
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
