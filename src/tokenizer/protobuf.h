#pragma once
#include <cstdint>
#include <exception>
#include <string_view>

namespace hero {

/// Bytes that are not in the protobuf wire format, or a field of another type than expected.
class MalformedProtobuf : public std::exception {
 public:
  const char* what() const noexcept override { return "malformed protobuf message"; }
};

/// Reader of a message in the protobuf wire format: fields with a key (number and wire type) and a value.
class ProtobufMessage {
 public:
  explicit ProtobufMessage(std::string_view bytes) : rest_(bytes) {}

  /// Reads the next field; false at the end.
  bool next();
  uint64_t field() const { return field_; }

  /// The value of the field. MalformedProtobuf if it has another wire type.
  uint64_t number() const;
  std::string_view bytes() const;
  float fixed_float() const;

 private:
  enum Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
  std::string_view take(uint64_t size);
  uint64_t varint();

  std::string_view rest_, bytes_;
  uint64_t field_ = 0, number_ = 0, wire_ = 0;
};

}  // namespace hero
