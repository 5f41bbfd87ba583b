#pragma once
// CUDA when it is asked for. The program links LibTorch's CPU part alone, because its CUDA part would be
// loaded at every start.
#include <c10/core/Device.h>

#include <string>

namespace hero {

/// Loads libtorch_cuda.so and our kernels (libhero_cuda.so beside libhero.so), once. False where a driver, a
/// device or one of the two is missing; without a driver nothing is loaded. To be called before anything else
/// asks LibTorch about CUDA: LibTorch remembers the first answer.
bool load_cuda_library();

/// What load_cuda_library() lacked, "" where it succeeded.
const std::string& cuda_obstacle();

/// The device meant by `wanted`, the value of `key`: "cpu", "cuda" (the first one visible), or "auto", cuda
/// where load_cuda_library() succeeds. UserError for any other word, and for cuda where it fails.
c10::Device choose_device(const std::string& wanted, const std::string& key);

/// Same input, same bits, also on CUDA. An operator that cannot promise that throws from now on. Before the
/// first kernel runs.
void use_deterministic_algorithms();

}  // namespace hero
