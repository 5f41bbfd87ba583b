// Megatron-LM's indexed dataset, PREFIX.bin and PREFIX.idx (megatron/core/datasets/indexed_dataset.py).
// Little-endian:
//   "MMIDIDX\0\0" | u64 version = 1 | u8 dtype code | u64 S sequences | u64 D = documents + 1 |
//   i32 lengths[S] | i64 byte pointers[S] | i64 document_indices[D] (first sequence of each document, then S)
//   | i8 modes[S], only in multimodal datasets.
// The arrays start at byte 34 and are unaligned. The .bin file contains only the tokens. Both are
// memory-mapped.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace hero {

/// Megatron dtype codes of integer tokens; 6 and 7 are floats and rejected.
enum class TokenType : uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

/// Bytes of one token.
int64_t token_bytes(TokenType type);
const char* token_type_name(TokenType type);

/// PREFIX without ".bin" or ".idx"; PREFIX-SPLIT if only that has an .idx (as written by hero data tokenize).
std::string resolve_prefix(const std::string& prefix, const std::string& split);

class IndexedDataset {
 public:
  /// Opens PREFIX.idx and PREFIX.bin (the prefix may include either extension) and validates magic, version,
  /// type, counts, file sizes, and every length, pointer and document index. UserError names the file, the
  /// found and the expected value.
  explicit IndexedDataset(const std::string& prefix);
  ~IndexedDataset();

  const std::string& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  int64_t documents() const { return documents_; }
  int64_t sequences() const { return sequences_; }
  int64_t tokens() const { return tokens_; }

  /// Offset of a document's first token in the dataset; tokens() for document = documents().
  int64_t document_begin(int64_t document) const;
  /// The document that contains a token.
  int64_t document_at(int64_t token) const;
  int64_t document_tokens(int64_t document) const {
    return document_begin(document + 1) - document_begin(document);
  }

  /// Copies tokens [begin, begin + count) of the concatenated documents to `out`. UserError as check_tokens
  /// after check_reads.
  void read(int64_t begin, int64_t count, int64_t* out) const;

  /// Reads every token, on all cores. UserError names the file, document and position of the first token
  /// outside [0, vocab_size).
  void check_tokens(int64_t vocab_size) const;
  /// From now on read() checks the tokens that it copies; 0: not.
  void check_reads(int64_t vocab_size) { vocab_size_ = vocab_size; }

 private:
  class MappedFile;
  void check_index();
  void copy(int64_t begin, int64_t count, int64_t* out) const;
  [[noreturn]] void reject(int64_t token, int64_t vocab_size) const;
  int64_t pointer(int64_t sequence) const;
  int64_t length(int64_t sequence) const;
  int64_t document_index(int64_t entry) const;

  std::string prefix_;
  std::unique_ptr<MappedFile> index_, data_;
  TokenType type_ = TokenType::i32;
  int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
  int64_t vocab_size_ = 0;  // of check_reads
};

}  // namespace hero
