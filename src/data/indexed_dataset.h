// Megatron-LM's indexed token files, PREFIX.bin and PREFIX.idx (megatron/core/datasets/indexed_dataset.py).
// Little-endian:
//   "MMIDIDX\0\0" | u64 version = 1 | u8 dtype code | u64 S sequences | u64 D = documents + 1 |
//   i32 lengths[S] | i64 byte pointers[S] | i64 document_indices[D] (first sequence of each document, then S)
//   | i8 modes[S], in multimodal sets only.
// The arrays begin at byte 34 and are unaligned. The .bin holds the tokens and nothing else. Both are mapped,
// not read.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace hero {

/// The codes of integer tokens; 6 and 7 are floats and refused.
enum class TokenType : uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

/// Bytes of one token.
int64_t token_bytes(TokenType type);
const char* token_type_name(TokenType type);

/// PREFIX without ".bin" or ".idx". Where PREFIX itself has no .idx and PREFIX-SPLIT has one (as hero data
/// tokenize writes them), PREFIX-SPLIT.
std::string resolve_prefix(const std::string& prefix, const std::string& split);

class IndexedDataset {
 public:
  /// Opens PREFIX.idx and PREFIX.bin (the prefix with or without either ending) and checks magic, version,
  /// type, counts, the sizes of both files, and every length, pointer and document index. UserError with the
  /// file, what was found and expected.
  explicit IndexedDataset(const std::string& prefix);
  ~IndexedDataset();

  const std::string& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  int64_t documents() const { return documents_; }
  int64_t sequences() const { return sequences_; }
  int64_t tokens() const { return tokens_; }

  /// The position of a document's first token among all tokens; `document` may be documents(), which gives
  /// tokens().
  int64_t document_begin(int64_t document) const;
  int64_t document_tokens(int64_t document) const {
    return document_begin(document + 1) - document_begin(document);
  }

  /// Writes tokens begin .. begin + count - 1 of the whole set (documents follow each other) to `out`.
  void read(int64_t begin, int64_t count, int64_t* out) const;

  /// Reads every token once, on all cores. UserError naming the first one outside 0 .. vocab_size - 1: file,
  /// document, position.
  void check_tokens(int64_t vocab_size) const;

 private:
  class Map;
  void check_index();
  int64_t pointer(int64_t sequence) const;
  int64_t length(int64_t sequence) const;
  int64_t document_index(int64_t entry) const;

  std::string prefix_;
  std::unique_ptr<Map> index_, data_;
  TokenType type_ = TokenType::i32;
  int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
};

}  // namespace hero
