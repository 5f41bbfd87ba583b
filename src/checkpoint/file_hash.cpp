#include "checkpoint/file_hash.h"

#include <openssl/evp.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "config/error.h"

namespace hero {
namespace {

void check(int succeeded) {
  if (!succeeded) throw RunError("libcrypto offers no SHA-256");
}

}  // namespace

std::string sha256_file(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), std::fclose);
  if (!file) throw UserError(path.string() + ": cannot be read: " + std::strerror(errno));
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  check(hash && EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr));
  std::vector<char> block(1 << 20);
  size_t size = 0;
  while ((size = std::fread(block.data(), 1, block.size(), file.get())) > 0) {
    check(EVP_DigestUpdate(hash.get(), block.data(), size));
  }
  if (std::ferror(file.get())) throw UserError(path.string() + ": cannot be read: " + std::strerror(errno));

  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned digest_size = 0;
  check(EVP_DigestFinal_ex(hash.get(), digest, &digest_size));
  std::string hex;
  for (unsigned i = 0; i < digest_size; ++i) {
    hex += "0123456789abcdef"[digest[i] >> 4];
    hex += "0123456789abcdef"[digest[i] & 15];
  }
  return hex;
}

}  // namespace hero
