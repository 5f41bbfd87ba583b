#include <c10/cuda/CUDAException.h>

#include "ops/cuda/experts_sm90.h"
#include "ops/cuda/kernels/grouped_wgmma.cuh"

namespace hero::ops::cuda {

void launch_grouped_wgmma(const GroupedGemmParams<c10::BFloat16, float>& params, cudaStream_t stream) {
  const auto kernel = grouped_wgmma<c10::BFloat16>;
  C10_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWgmmaSharedBytes));
  const dim3 grid(tile_count(params.m, kWgmmaRows), tile_count(params.n, kWgmmaColumns),
                  static_cast<unsigned>(params.experts));
  kernel<<<grid, kWgmmaThreads, kWgmmaSharedBytes, stream>>>(params);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace hero::ops::cuda
