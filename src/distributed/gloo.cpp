// The Gloo backend: its code lies in the torch wheel, whose headers lack gloo's. Those come from elsewhere
// (Debian's libgloo-dev) in another version, so that nothing of gloo's own may be made here.
#include "distributed/backends.h"
#include "io/error.h"

#ifdef HERO_GLOO
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace hero {

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create_default(timeout);
  return c10::make_intrusive<Gloo>(store, rank, size, std::move(options));
}

}  // namespace hero

#else
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace hero {

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>&, int, int size,
                                            std::chrono::milliseconds) {
  throw UserError("WORLD_SIZE: found " + std::to_string(size) +
                  " processes that compute on CPUs, expected 1: hero was built without gloo's headers "
                  "(libgloo-dev)");
}

}  // namespace hero
#endif
