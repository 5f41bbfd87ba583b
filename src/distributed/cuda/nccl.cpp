// The NCCL backend for distributed/backends.h; part of libhero_cuda.so.
#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "distributed/backends.h"

namespace hero {
namespace {

const bool registered = []() noexcept {
  register_nccl_backend([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                           std::chrono::milliseconds timeout) -> c10::intrusive_ptr<c10d::Backend> {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    // NCCL's watchdog aborts the process. The heartbeat is more informative and must time out first.
    options->timeout = timeout + std::chrono::seconds(10);
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, std::move(options));
  });
  return true;
}();

}  // namespace
}  // namespace hero
