#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "distributed/backends.h"

namespace hero {
namespace {

MakeBackend& the_maker() {
  static MakeBackend make = nullptr;
  return make;
}

}  // namespace

void set_make_nccl(MakeBackend make) { the_maker() = make; }

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout) {
  TORCH_CHECK(the_maker(), "make_nccl: libhero_cuda.so is not loaded");
  return the_maker()(store, rank, size, timeout);
}

}  // namespace hero
