#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

struct evp_md_ctx_st;

namespace hero {

/// A file's size and the SHA-256 of its bytes, 64 lower-case hexadecimal digits.
struct FileRecord {
  uint64_t bytes = 0;
  std::string sha256;
};

/// The record of bytes that come block by block. libcrypto hashes them, which uses the processor's
/// instructions for it (checkpoints are large).
class RunningHash {
 public:
  RunningHash();
  void add(const void* data, size_t size);
  /// Of all that was added; nothing can be added afterwards.
  FileRecord record();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };

  std::unique_ptr<evp_md_ctx_st, Free> context_;
  uint64_t bytes_ = 0;
};

/// UserError if the file cannot be read.
FileRecord record_file(const std::filesystem::path& path);

}  // namespace hero
