#pragma once
// Loads CUDA on demand. The program links only LibTorch's CPU libraries, because linking its CUDA libraries
// would load them at every start.
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "config/choices.h"

namespace hero {

/// Loads libtorch_cuda.so and our kernels (libhero_cuda.so in the folder of libhero.so), once. Returns false
/// if a driver, a device or one of the libraries is missing; without a driver it loads nothing. Call it
/// before anything queries CUDA through LibTorch, which caches the first answer.
bool load_cuda_library();

/// Why load_cuda_library() failed, "" if it succeeded.
const std::string& cuda_unavailable_reason();

/// Maps `wanted`, the value of `key`, to a device: cuda is the first visible device, auto is cuda if
/// load_cuda_library() succeeds, else cpu. UserError for cuda if it is unavailable.
c10::Device choose_device(DeviceChoice wanted, const std::string& key);

/// Properties of a CUDA device, from the driver.
struct CudaDevice {
  std::string name;
  int64_t bytes = 0;  ///< total memory
};

/// Properties of `device`, a CUDA device returned by choose_device(). Allocates nothing on it.
CudaDevice cuda_device(c10::Device device);

/// Waits for all work submitted to the device, like torch.cuda.synchronize(); returns immediately for the
/// CPU.
void synchronize(c10::Device device);

/// Makes results bitwise reproducible, also on CUDA; operators without a deterministic implementation throw
/// from now on. Call it before the first kernel runs.
void use_deterministic_algorithms();

}  // namespace hero
