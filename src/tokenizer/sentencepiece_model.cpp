#include "tokenizer/sentencepiece_model.h"

#include <cstdint>
#include <cstring>
#include <string_view>

#include "io/error.h"

namespace hero {

namespace {

// Reader of the protobuf wire format: a key (field number and wire type), then the value.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  // Reads the next field; false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    field_ = key >> 3;
    number_ = 0;
    bytes_ = {};
    switch (key & 7) {
      case 0:
        number_ = varint();
        break;
      case 1:
        bytes_ = take(8);
        break;
      case 2:
        bytes_ = take(varint());
        break;
      case 5:
        bytes_ = take(4);
        break;
      default:
        fail();
    }
    return true;
  }
  uint64_t field() const { return field_; }
  uint64_t number() const { return number_; }
  std::string_view bytes() const { return bytes_; }

 private:
  [[noreturn]] static void fail() { throw RunError("SentencePiece model: truncated field"); }
  std::string_view take(uint64_t size) {
    if (size > rest_.size()) fail();
    const auto taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail();
  }

  std::string_view rest_, bytes_;
  uint64_t field_ = 0, number_ = 0;
};

SentencePieceModel::Piece read_piece(std::string_view bytes) {
  SentencePieceModel::Piece piece;
  for (Message message(bytes); message.next();) {
    if (message.field() == 1) piece.text = message.bytes();
    if (message.field() == 2 && message.bytes().size() == 4)
      std::memcpy(&piece.score, message.bytes().data(), sizeof piece.score);
    if (message.field() == 3) piece.type = static_cast<SentencePieceModel::Type>(message.number());
  }
  return piece;
}

}  // namespace

SentencePieceModel read_sentencepiece_model(const std::string& bytes) {
  SentencePieceModel model;
  for (Message message(bytes); message.next();) {
    if (message.field() == 1) model.pieces.push_back(read_piece(message.bytes()));
    if (message.field() != 2) continue;
    for (Message trainer(message.bytes()); trainer.next();) {
      if (trainer.field() == 3) model.kind = static_cast<SentencePieceModel::Kind>(trainer.number());
    }
  }
  return model;
}

std::string with_spaces(std::string piece) {
  for (std::size_t at = 0; (at = piece.find(kSpaceSymbol, at)) != piece.npos; ++at)
    piece.replace(at, kSpaceSymbol.size(), 1, ' ');
  return piece;
}

}  // namespace hero
