#include "tokenizer/protobuf.h"

#include <cstring>

namespace hero {

bool ProtobufMessage::next() {
  if (rest_.empty()) return false;
  const uint64_t key = varint();
  field_ = key >> 3;
  wire_ = key & 7;
  if (field_ == 0 || key > UINT32_MAX) throw MalformedProtobuf();
  if (wire_ == kVarint) {
    number_ = varint();
  } else if (wire_ == kBytes) {
    bytes_ = take(varint());
  } else if (wire_ == kFixed32 || wire_ == kFixed64) {
    bytes_ = take(wire_ == kFixed32 ? 4 : 8);
  } else {
    throw MalformedProtobuf();
  }
  return true;
}

uint64_t ProtobufMessage::number() const {
  if (wire_ != kVarint) throw MalformedProtobuf();
  return number_;
}

std::string_view ProtobufMessage::bytes() const {
  if (wire_ != kBytes) throw MalformedProtobuf();
  return bytes_;
}

float ProtobufMessage::fixed_float() const {
  if (wire_ != kFixed32) throw MalformedProtobuf();
  float value;
  std::memcpy(&value, bytes_.data(), sizeof value);
  return value;
}

std::string_view ProtobufMessage::take(uint64_t size) {
  if (size > rest_.size()) throw MalformedProtobuf();
  const auto taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

uint64_t ProtobufMessage::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto byte = static_cast<unsigned char>(take(1)[0]);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  throw MalformedProtobuf();
}

}  // namespace hero
