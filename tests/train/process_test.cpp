// The CPU allocator of a training process.
#include "train/process.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace hero {
namespace process_test {

at::Tensor bytes(int64_t count) { return at::empty({count}, at::TensorOptions(at::kByte)); }

TEST(Process, TensorsAreAligned) {
  prepare_process(Config());
  for (const int64_t count : {1, 7, 63, 64, 65, 100'003, 40'000'001}) {
    const auto tensor = bytes(count);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0u) << count;
    tensor.fill_(7);
    EXPECT_EQ(tensor.sum().item<int64_t>(), 7 * count);
  }
  EXPECT_EQ(bytes(0).numel(), 0);
}

// With other tensors alive, a freed block is reused by the next tensor of the same size.
TEST(Process, FreedMemoryIsReused) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer delays the reuse of memory";
#endif
  prepare_process(Config());
  constexpr int64_t size = 5'000'000;
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 5; ++i) tensors.push_back(bytes(size));
  const void* address = tensors[2].data_ptr();
  tensors[2] = at::Tensor();
  EXPECT_EQ(bytes(size).data_ptr(), address);
}

}  // namespace process_test
}  // namespace hero
