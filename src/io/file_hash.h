#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

struct evp_md_ctx_st;

namespace hero {

/// A file's size and the SHA-256 of its bytes, 64 lower-case hexadecimal digits.
struct FileDigest {
  uint64_t bytes = 0;
  std::string sha256;
};

/// Incremental SHA-256. Uses libcrypto, which has hardware-accelerated code (checkpoints are large).
class RunningHash {
 public:
  RunningHash();
  void add(const void* data, size_t size);
  /// Size and hash of all added bytes; no bytes can be added afterwards.
  FileDigest record();

 private:
  struct Deleter {
    void operator()(evp_md_ctx_st* context) const;
  };

  std::unique_ptr<evp_md_ctx_st, Deleter> context_;
  uint64_t bytes_ = 0;
};

/// Bytes that this process has hashed so far, in all threads. Heartbeats report them: hashing a checkpoint
/// can take longer than parallel.timeout.
uint64_t bytes_hashed();

/// Size and SHA-256 of a file. UserError if it cannot be read.
FileDigest hash_file(const std::filesystem::path& path);

}  // namespace hero
