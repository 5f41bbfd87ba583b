#include "io/file_hash.h"

#include <openssl/evp.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "io/error.h"

namespace hero {
namespace {

std::atomic<uint64_t> hashed_bytes{0};

void check(int succeeded) {
  if (!succeeded) throw RunError("libcrypto does not support SHA-256");
}

}  // namespace

void RunningHash::Deleter::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

RunningHash::RunningHash() : context_(EVP_MD_CTX_new()) {
  check(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr));
}

void RunningHash::add(const void* data, size_t size) {
  check(EVP_DigestUpdate(context_.get(), data, size));
  bytes_ += size;
  hashed_bytes += size;
}

FileDigest RunningHash::record() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned digest_size = 0;
  check(EVP_DigestFinal_ex(context_.get(), digest, &digest_size));
  std::string hex;
  for (unsigned i = 0; i < digest_size; ++i) {
    hex += "0123456789abcdef"[digest[i] >> 4];
    hex += "0123456789abcdef"[digest[i] & 15];
  }
  return {bytes_, hex};
}

uint64_t bytes_hashed() { return hashed_bytes; }

FileDigest hash_file(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), std::fclose);
  if (!file) throw UserError(path.string() + ": cannot be read: " + std::strerror(errno));
  RunningHash hash;
  std::vector<char> block(1 << 20);
  size_t size = 0;
  while ((size = std::fread(block.data(), 1, block.size(), file.get())) > 0) hash.add(block.data(), size);
  if (std::ferror(file.get())) throw UserError(path.string() + ": cannot be read: " + std::strerror(errno));
  return hash.record();
}

}  // namespace hero
