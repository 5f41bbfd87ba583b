#pragma once
// PyTorch's backends of a group. Each is included by one file of its own, because their headers need what not
// every machine has.
#include <c10/util/intrusive_ptr.h>

#include <chrono>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace hero {

/// Operations of `size` processes that find one another through `store`; one that takes longer than
/// `timeout` fails.
using MakeBackend = c10::intrusive_ptr<c10d::Backend> (*)(const c10::intrusive_ptr<c10d::Store>& store,
                                                          int rank, int size,
                                                          std::chrono::milliseconds timeout);

/// For CPU tensors. UserError where the program was built without gloo's headers.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout);

/// For CUDA tensors. libhero_cuda.so brings it when it is loaded; libhero.so does not know CUDA.
void set_make_nccl(MakeBackend make);
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout);

}  // namespace hero
