#pragma once
// Runs CUDA kernels on CPU tensors.
#include "cuda/emulate.h"

// Include kernels after the emulated built-ins.
#include "ops/compare.h"

namespace hero::test {

/// Runs a kernel in both thread orders and checks that `outputs` are equal; restores their initial values in
/// between.
template <typename... Parameters, typename... Arguments>
void launch(const std::vector<at::Tensor>& outputs, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            const Arguments&... arguments) {
  std::vector<at::Tensor> before, first;
  for (const auto& output : outputs) before.push_back(output.clone());
  emulate::set_order(emulate::Order::kDescending);
  ASSERT_EQ(emulate::launch(kernel, grid, block, arguments...), "");
  for (size_t i = 0; i < outputs.size(); ++i) {
    first.push_back(outputs[i].clone());
    outputs[i].copy_(before[i]);
  }
  emulate::set_order(emulate::Order::kAscending);
  ASSERT_EQ(emulate::launch(kernel, grid, block, arguments...), "");
  for (size_t i = 0; i < outputs.size(); ++i)
    EXPECT_TRUE(same(outputs[i], first[i])) << "output " << i << " depends on the order of the threads";
}

inline dim3 blocks(int64_t n, int64_t per_block, int64_t y = 1) {
  return {static_cast<unsigned>((n + per_block - 1) / per_block), static_cast<unsigned>(y)};
}

/// Calls f<T, n>(type) for all types, scalar and, if the width allows, vectorized.
template <typename F>
void for_types(int64_t width, const F& f) {
  f.template operator()<c10::BFloat16, 1>(at::kBFloat16);
  f.template operator()<float, 1>(at::kFloat);
  if (width % 8 == 0) f.template operator()<c10::BFloat16, 8>(at::kBFloat16);
  if (width % 8 == 0) f.template operator()<c10::Half, 8>(at::kHalf);
  if (width % 4 == 0) f.template operator()<float, 4>(at::kFloat);
}

}  // namespace hero::test
