#pragma once
// Warp-level PTX instructions for tensor cores, sm_80 and later; tests/cuda/emulate_mma.h emulates them on
// the CPU.
#ifdef __CUDACC__
#include <cuda_pipeline.h>

#include <cstdint>

namespace hero::ops::cuda {

/// ldmatrix.x4: loads four 8 x 8 matrices of 16-bit elements. Lane l provides the address of row l % 8 of
/// matrix l / 8; its register i receives row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1, of matrix i, or of
/// its transpose if `transposed`.
template <bool transposed>
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const void* row) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
}

/// mma.m16n8k16: c [16, 8] += a [16, 16] b [16, 8], bf16 with fp32 accumulation.
__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace hero::ops::cuda
#endif
