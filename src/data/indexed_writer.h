#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"

namespace hero {

/// Streaming writer of PREFIX.bin and PREFIX.idx (see indexed_dataset.h), one sequence per document. Memory:
/// 4 bytes per document. Files have temporary names until finish() and are removed without it. RunError on
/// write failures.
class IndexedWriter {
 public:
  IndexedWriter(std::string prefix, TokenType type);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;

  /// uint16 for vocabularies below 65,500, like Megatron, else int32.
  static TokenType type_for(int64_t vocab_size) {
    return vocab_size < 65500 ? TokenType::u16 : TokenType::i32;
  }

  /// Ids must fit the type. UserError for a document of 2^31 or more tokens (limit of the format).
  void add_document(std::span<const int32_t> ids);

  /// Syncs both files to disk and renames them to their final names.
  void finish();

 private:
  void write(const void* bytes, std::size_t size);
  void write_index();

  std::string prefix_;
  TokenType type_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> data_{nullptr, std::fclose};
  std::vector<int32_t> lengths_;
};

}  // namespace hero
