#include "inference/server/token_text.h"

#include <cstdio>

#include "inference/server/text_stream.h"
#include "io/utf8.h"

namespace hero {

std::string token_bytes(const Tokenizer& tokenizer, int64_t id) {
  return id < tokenizer.vocab_size() ? tokenizer.bytes(static_cast<int32_t>(id)) : "";
}

std::string token_string(const Tokenizer& tokenizer, int64_t id) {
  std::string bytes = token_bytes(tokenizer, id);
  if (bytes.empty() && id < tokenizer.vocab_size()) bytes = tokenizer.piece(static_cast<int32_t>(id));
  if (bytes.empty()) return "token_id:" + std::to_string(id);
  if (find_invalid_utf8(bytes) == std::string::npos) return bytes;
  std::string text = "bytes:";
  for (const char c : bytes) {
    char hex[8];
    std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned char>(c));
    text += hex;
  }
  return text;
}

std::string decode_text(const Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  Utf8StreamDecoder decoder;
  std::string text;
  for (const int64_t id : ids) text += decoder.add(token_bytes(tokenizer, id));
  return text + decoder.flush();
}

}  // namespace hero
