#include "train/version.h"

#include <dlfcn.h>

#include "ops/ops.h"

namespace hero {

std::string program_version() {
  Dl_info library{};
  const bool found = dladdr(reinterpret_cast<const void*>(&ops::linear), &library) != 0 && library.dli_fname;
  return library_versions(found ? library.dli_fname : "");
}

}  // namespace hero
