#pragma once
// What the kernels share: 16-byte vectors and sums over a warp. These files know no tensors, only pointers
// and sizes, and use nothing but the vocabulary of CUDA C++, so that the tests compile them for the processor
// with that vocabulary emulated (tests/cuda/emulate.h).
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

#ifdef __CUDACC__
#define HERO_UNROLL _Pragma("unroll")
#else
#define HERO_UNROLL
#endif

namespace hero::ops::cuda {

inline constexpr int kLanes = 32;
inline constexpr unsigned kAll = 0xffffffffu;  // every lane of a warp

/// Values of T in 16 bytes.
template <typename T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

/// n neighbouring values, read or written at once; their address is a multiple of their size.
template <typename T, int n>
struct alignas(sizeof(T) * n) Vector {
  T value[n];
};

template <int n, typename T>
__device__ __forceinline__ Vector<T, n> load(const T* from) {
  return *reinterpret_cast<const Vector<T, n>*>(from);
}

/// To global memory. By an intrinsic: the compiler takes apart the store of a struct that it has just put
/// together.
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

/// The n values at `from` in fp32.
template <int n, typename T>
__device__ __forceinline__ Vector<float, n> load_wide(const T* from) {
  const auto narrow = load<n>(from);
  Vector<float, n> wide;
  HERO_UNROLL
  for (int i = 0; i < n; ++i) wide.value[i] = static_cast<float>(narrow.value[i]);
  return wide;
}

/// The n values, rounded to T.
template <typename T, int n>
__device__ __forceinline__ void store_rounded(T* to, const Vector<float, n>& wide) {
  Vector<T, n> narrow;
  HERO_UNROLL
  for (int i = 0; i < n; ++i) narrow.value[i] = static_cast<T>(wide.value[i]);
  store(to, narrow);
}

/// For every lane the sum over the warp, always in the same order.
__device__ __forceinline__ float warp_sum(float v) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(kAll, v, offset);
  return v;
}

__device__ __forceinline__ float warp_max(float v) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(kAll, v, offset));
  return v;
}

/// Sum of v over this lane and those before it.
__device__ __forceinline__ int64_t warp_prefix(int64_t v, int lane) {
  for (int offset = 1; offset < kLanes; offset *= 2) {
    const int64_t below = __shfl_up_sync(kAll, v, offset);
    if (lane >= offset) v += below;
  }
  return v;
}

}  // namespace hero::ops::cuda
