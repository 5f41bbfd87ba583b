#include <torch/version.h>

#include "io/file_hash.h"
#include "train/version.h"

namespace hero {

std::string library_versions(const std::filesystem::path& libhero) {
  const std::string hash = libhero.empty() ? "unknown" : hash_file(libhero).sha256.substr(0, 12);
  return "torch " TORCH_VERSION ", libhero.so " + hash;
}

}  // namespace hero
