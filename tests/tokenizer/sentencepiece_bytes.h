// Writes SentencePiece model files piece by piece, including invalid ones.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "tokenizer/sentencepiece_model.h"

namespace hero::sentencepiece_bytes {

using Type = SentencePieceModel::Type;

inline std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

inline std::string field(int number, const std::string& bytes) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}

inline std::string field(int number, uint64_t value) {
  return varint(static_cast<uint64_t>(number) << 3) + varint(value);
}

inline std::string piece(const std::string& text, Type type = Type::normal, float score = 0) {
  std::string bits(sizeof score, '\0');
  std::memcpy(bits.data(), &score, sizeof score);
  return field(1, field(1, text) + varint(2 << 3 | 5) + bits + field(3, static_cast<uint64_t>(type)));
}

inline std::string model_of(const std::string& pieces, SentencePieceModel::Kind kind,
                            const std::string& map = "") {
  return piece("<unk>", Type::unknown) + pieces + field(2, field(3, static_cast<uint64_t>(kind))) +
         field(3, field(2, map));
}

/// A BPE model with byte fallback that keeps text, or adds a space before it: <unk>, </s>, 256 byte pieces,
/// then `pieces` with spaces as U+2581.
inline std::string byte_fallback_bpe(const std::string& pieces, bool add_dummy_prefix = false) {
  std::string bytes = piece("<unk>", Type::unknown) + piece("</s>", Type::control);
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    bytes += piece(name, Type::byte);
  }
  const std::string trainer =
      field(3, static_cast<uint64_t>(SentencePieceModel::Kind::bpe)) + field(35, uint64_t{1});
  const std::string normalizer = field(1, "identity") + field(3, uint64_t{add_dummy_prefix}) +
                                 field(4, uint64_t{0}) + field(5, uint64_t{1});
  return bytes + pieces + field(2, trainer) + field(3, normalizer);
}

}  // namespace hero::sentencepiece_bytes
