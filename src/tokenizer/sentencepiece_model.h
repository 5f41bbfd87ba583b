#pragma once
#include <string>
#include <vector>

namespace hero {

/// Pieces of a SentencePiece model file (ModelProto).
struct SentencePieceModel {
  enum class Kind { unigram = 1, bpe, word, character };
  enum class Type { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string text;  // with U+2581 as the space
    float score = 0;
    Type type = Type::normal;
  };
  Kind kind = Kind::unigram;
  std::vector<Piece> pieces;  // by id
};

/// Parses a model that SentencePiece has loaded before. RunError if it is truncated.
SentencePieceModel read_sentencepiece_model(const std::string& bytes);

}  // namespace hero
