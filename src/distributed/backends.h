#pragma once
// Factories of PyTorch's process group backends. Each backend has its own source file, because its headers
// have dependencies that not every machine provides.
#include <c10/util/intrusive_ptr.h>

#include <chrono>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace hero {

/// Creates a backend for `size` processes, which rendezvous through `store`. Operations that exceed `timeout`
/// fail.
using BackendFactory = c10::intrusive_ptr<c10d::Backend> (*)(const c10::intrusive_ptr<c10d::Store>& store,
                                                             int rank, int size,
                                                             std::chrono::milliseconds timeout);

/// For CPU tensors. UserError if the program was built without Gloo's headers.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, std::chrono::milliseconds timeout);

/// For CUDA tensors. libhero_cuda.so registers it when loaded; libhero.so has no CUDA dependency.
void register_nccl_backend(BackendFactory factory);
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, std::chrono::milliseconds timeout);

}  // namespace hero
