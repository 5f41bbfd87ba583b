#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"

namespace hero {

/// Writes PREFIX.bin and PREFIX.idx (see indexed_dataset.h), one sequence a document, as a stream: memory is
/// 4 bytes a document. The files carry temporary names until finish(); without it nothing is left. RunError
/// when writing fails.
class IndexedWriter {
 public:
  IndexedWriter(std::string prefix, TokenType type);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;

  /// uint16 where Megatron chooses it (a vocabulary below 65,500), else int32.
  static TokenType type_for(int64_t vocab_size) {
    return vocab_size < 65500 ? TokenType::u16 : TokenType::i32;
  }

  /// The ids must fit the type. UserError for a document of 2^31 tokens or more, which the format cannot
  /// hold.
  void add_document(std::span<const int32_t> ids);

  /// Flushes both files to the disk and gives them their names.
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
