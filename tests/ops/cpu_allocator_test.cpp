// The CPU allocator of training processes and of processes that load a model.
#include "ops/cpu_allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <malloc.h>

namespace hero {
namespace cpu_allocator_test {

at::Tensor bytes(int64_t count) { return at::empty({count}, at::TensorOptions(at::kByte)); }

TEST(CpuAllocator, TensorsAreAligned) {
  use_aligned_allocator();
  for (const int64_t count : {1, 7, 63, 64, 65, 100'003, 40'000'001}) {
    const auto tensor = bytes(count);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0u) << count;
    tensor.fill_(7);
    EXPECT_EQ(tensor.sum().item<int64_t>(), 7 * count);
  }
  EXPECT_EQ(bytes(0).numel(), 0);
}

// With other tensors alive, a freed block is reused by the next tensor of the same size.
TEST(CpuAllocator, FreedMemoryIsReused) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer delays the reuse of memory";
#endif
  use_aligned_allocator();
  ::mallopt(M_MMAP_MAX, 0);  // as in training: blocks of this size come from the heap
  constexpr int64_t size = 5'000'000;
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 5; ++i) tensors.push_back(bytes(size));
  const void* address = tensors[2].data_ptr();
  tensors[2] = at::Tensor();
  EXPECT_EQ(bytes(size).data_ptr(), address);
}

}  // namespace cpu_allocator_test
}  // namespace hero
