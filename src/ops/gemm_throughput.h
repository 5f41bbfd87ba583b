#pragma once
// What `mfu` is relative to: the GEMM throughput of a device, and the instructions that reach it.
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

namespace hero {

/// Throughput in FLOP/s of a square GEMM of this dtype on this device, the best of several runs of at::mm and
/// ops::linear; 1024 rows on the CPU, 8192 elsewhere.
double gemm_flops_per_second(at::ScalarType dtype, at::Device device);

struct GemmKernelThroughput {
  std::string name;  ///< a value of HERO_GEMM
  double flops_per_second = 0;
  bool used = false;  ///< by operators of this process
};

/// The bf16 GEMM kernels that this CPU supports, in the order of preference, with operands of 1024 x 1024,
/// the right one packed, on all threads.
std::vector<GemmKernelThroughput> gemm_kernel_throughputs();

/// The instruction set of GEMMs of this dtype on the CPU: for bf16 the one of our kernels, a value of
/// HERO_GEMM such as "avx512_bf16", otherwise LibTorch's, such as "avx512" or "default".
std::string gemm_instructions(at::ScalarType dtype);

}  // namespace hero
