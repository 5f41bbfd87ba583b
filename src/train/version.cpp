#include "train/version.h"

#include <dlfcn.h>
#include <torch/version.h>

#include "io/file_hash.h"
#include "ops/ops.h"

namespace hero {

std::string program_version() {
  Dl_info library{};
  std::string hash = "unknown";
  if (dladdr(reinterpret_cast<const void*>(&ops::linear), &library) != 0 && library.dli_fname)
    hash = hash_file(library.dli_fname).sha256.substr(0, 12);
  return "torch " TORCH_VERSION ", libhero.so " + hash;
}

}  // namespace hero
