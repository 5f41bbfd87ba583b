// The NCCL backend for parallel/backends.h; part of libhero_cuda.so.
#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "parallel/backends.h"

namespace hero {
namespace {

const bool registered = []() noexcept {
  set_make_nccl([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                   double timeout) -> c10::intrusive_ptr<c10d::Backend> {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout * 1000));
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, std::move(options));
  });
  return true;
}();

}  // namespace
}  // namespace hero
