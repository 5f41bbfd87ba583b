#pragma once
// Shared device functions: 16-byte vectors and warp reductions. These files use only pointers, sizes and CUDA
// C++ built-ins, so tests can compile them for the CPU with an emulation of the built-ins
// (tests/cuda/emulate.h).
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

#ifdef __CUDACC__
#define HERO_UNROLL _Pragma("unroll")
#else
#define HERO_UNROLL
#endif

namespace hero::ops::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullMask = 0xffffffffu;  // every lane of a warp

/// Elements of T in 16 bytes.
template <typename T>
inline constexpr int kVectorSize = 16 / static_cast<int>(sizeof(T));

/// n consecutive elements, loaded or stored at once; aligned to their size.
template <typename T, int n>
struct alignas(sizeof(T) * n) Vector {
  T value[n];
};

template <int n, typename T>
__device__ __forceinline__ Vector<T, n> load(const T* from) {
  return *reinterpret_cast<const Vector<T, n>*>(from);
}

/// Stores to global memory. Uses an intrinsic, because the compiler splits the store of a struct.
template <typename T, int n>
__device__ __forceinline__ void store(T* to, const Vector<T, n>& vector) {
  constexpr int bytes = static_cast<int>(sizeof(T)) * n;
  if constexpr (bytes == 32) {
    struct Halves {
      uint4 low, high;
    };
    const auto halves = __builtin_bit_cast(Halves, vector);
    __stwb(reinterpret_cast<uint4*>(to), halves.low);
    __stwb(reinterpret_cast<uint4*>(to) + 1, halves.high);
  } else if constexpr (bytes == 16) {
    __stwb(reinterpret_cast<uint4*>(to), __builtin_bit_cast(uint4, vector));
  } else if constexpr (bytes == 8) {
    __stwb(reinterpret_cast<uint2*>(to), __builtin_bit_cast(uint2, vector));
  } else if constexpr (n == 2) {
    __stwb(reinterpret_cast<unsigned*>(to), __builtin_bit_cast(unsigned, vector));
  } else {
    static_assert(n == 1);
    *to = vector.value[0];
  }
}

/// Loads n elements and converts them to fp32.
template <int n, typename T>
__device__ __forceinline__ Vector<float, n> load_fp32(const T* from) {
  const auto narrow = load<n>(from);
  Vector<float, n> wide;
  HERO_UNROLL
  for (int i = 0; i < n; ++i) wide.value[i] = static_cast<float>(narrow.value[i]);
  return wide;
}

/// Stores n elements, rounded to T.
template <typename T, int n>
__device__ __forceinline__ void store_rounded(T* to, const Vector<float, n>& wide) {
  Vector<T, n> narrow;
  HERO_UNROLL
  for (int i = 0; i < n; ++i) narrow.value[i] = static_cast<T>(wide.value[i]);
  store(to, narrow);
}

#ifdef __CUDACC__
/// Shared memory of the size given at launch.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char bytes[];
  return bytes;
}
#endif

/// Sum over the warp in every lane, in a fixed order.
template <typename T>
__device__ __forceinline__ T warp_sum(T v) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(kFullMask, v, offset);
  return v;
}

__device__ __forceinline__ float warp_max(float v) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2)
    v = fmaxf(v, __shfl_xor_sync(kFullMask, v, offset));
  return v;
}

/// Inclusive prefix sum over the warp.
__device__ __forceinline__ int64_t warp_prefix(int64_t v, int lane) {
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const int64_t below = __shfl_up_sync(kFullMask, v, offset);
    if (lane >= offset) v += below;
  }
  return v;
}

}  // namespace hero::ops::cuda
