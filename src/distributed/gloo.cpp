// The Gloo backend. The torch wheel contains Gloo but not its headers. Headers from another source (Debian's
// libgloo-dev) may be of a different version, so this file must not create any of Gloo's own objects.
#include "distributed/backends.h"
#include "io/error.h"

#ifdef HERO_GLOO
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace hero {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, std::chrono::milliseconds timeout) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create_default(timeout);
  return c10::make_intrusive<Gloo>(store, rank, size, std::move(options));
}

}  // namespace hero

#else

namespace hero {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>&, int, int size,
                                                    std::chrono::milliseconds) {
  throw UserError("WORLD_SIZE: found " + std::to_string(size) +
                  " processes on CPUs, expected 1: hero was built without Gloo's headers "
                  "(libgloo-dev)");
}

}  // namespace hero
#endif
