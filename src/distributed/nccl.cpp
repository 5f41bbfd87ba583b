#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "distributed/backends.h"

namespace hero {
namespace {

BackendFactory& nccl_factory() {
  static BackendFactory factory = nullptr;
  return factory;
}

}  // namespace

void register_nccl_backend(BackendFactory factory) { nccl_factory() = factory; }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, std::chrono::milliseconds timeout) {
  TORCH_CHECK(nccl_factory(), "make_nccl_backend: libhero_cuda.so is not loaded");
  return nccl_factory()(store, rank, size, timeout);
}

}  // namespace hero
