#pragma once
// The grouped GEMM for Hopper, compiled for sm_90a only.
#include <c10/util/BFloat16.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/kernels/grouped.cuh"

namespace hero::ops::cuda {

/// Weight gradients by grouped_wgmma. Devices of compute capability 9.0; operands and widths for 16-byte
/// chunks.
void launch_grouped_wgmma(const GroupedGemmParams<c10::BFloat16, float>& params, cudaStream_t stream);

}  // namespace hero::ops::cuda
