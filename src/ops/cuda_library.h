#pragma once
// CUDA when it is asked for. The program links LibTorch's CPU part alone, because its CUDA part would be
// loaded at every start.
#include <c10/core/Device.h>

#include <cstdint>
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

/// What the driver says of a CUDA device.
struct CudaDevice {
  std::string name;
  int64_t bytes = 0;  ///< of its memory
};

/// `device` as choose_device() gave it, on cuda. Nothing is allocated there.
CudaDevice cuda_device(c10::Device device);

/// Returns when the device has done all that it was given; on the CPU at once.
void wait_for(c10::Device device);

/// Same input, same bits, also on CUDA. An operator that cannot promise that throws from now on. Before the
/// first kernel runs.
void use_deterministic_algorithms();

}  // namespace hero
