#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace hero {

/// Pieces of a SentencePiece model file (ModelProto).
struct SentencePieceModel {
  enum class Kind { unigram = 1, bpe, word, character };
  enum class Type { normal = 1, unknown, control, user_defined, unused, byte };
  /// What happens to a text before and after it is encoded as pieces: nothing, a space is added before it, or
  /// anything else.
  enum class Normalization { none, space_first, other };
  struct Piece {
    std::string text;  // with U+2581 as the space
    float score = 0;
    Type type = Type::normal;
  };
  Kind kind = Kind::unigram;
  std::vector<Piece> pieces;   // by id
  bool byte_fallback = false;  // characters without a piece are encoded as bytes
  Normalization normalization = Normalization::other;
};

/// U+2581, which stands for the space in pieces.
inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

/// A piece with spaces in place of U+2581. U+2581 in a text has no piece and falls back to bytes.
std::string with_spaces(std::string piece);

/// Parses a model. SentencePiece may read it afterwards: what crashes version 0.1.97, or what another parser
/// of protobuf might read in another way, is a UserError. `name`: the file's name in messages.
SentencePieceModel read_sentencepiece_model(const std::string& bytes, const std::string& name);

/// The error for bytes that are not a SentencePiece model.
[[noreturn]] void reject_sentencepiece_model(const std::string& bytes, const std::string& name);

}  // namespace hero
