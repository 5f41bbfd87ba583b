#pragma once
#include <string>
#include <vector>

namespace hero {

/// What a SentencePiece model file (a ModelProto) says about its pieces.
struct SentencePieceModel {
  enum class Kind { unigram = 1, bpe, word, character };
  enum class Type { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string text;  // U+2581 for the space
    float score = 0;
    Type type = Type::normal;
  };
  Kind kind = Kind::unigram;
  std::vector<Piece> pieces;  // by id
};

/// Reads the bytes of a model that SentencePiece has accepted. RunError when they end early.
SentencePieceModel read_sentencepiece_model(const std::string& bytes);

}  // namespace hero
