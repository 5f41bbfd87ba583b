#pragma once
// Emulates CUDA C++ built-ins on the CPU, to run kernels without a device. Thread blocks, or clusters of
// them, run one after another; the threads of a block are fibers that run until they reach a barrier or a
// shuffle.
//
// Reported errors: a barrier or shuffle that not every thread (lane) reaches, or that threads reach at
// different source lines; a trap; a misaligned store of a vector. Shared memory is filled with one bits (NaN)
// before each block, which exposes reads of uninitialized memory. The thread order can be reversed: a missing
// barrier then changes the results of one of the two orders. -fsanitize=address,undefined detects
// out-of-bounds accesses (-fsanitize-sections=emulated_shared for shared memory).
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

// NOLINTBEGIN(bugprone-reserved-identifier): the names are CUDA's

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("emulated_shared")))

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace hero::emulate {

/// Source location where a thread waits.
struct SourceLocation {
  const char* file;
  int line;
};

/// Runs `thread` once for every thread of every block, in clusters of so many blocks along x. Returns the
/// first error, or "".
std::string run(dim3 grid, dim3 block, const std::function<void()>& thread, unsigned blocks_per_cluster = 1);

/// The shared memory of a block whose size is given at launch.
inline constexpr size_t kDynamicSharedBytes = 227 * 1024;
extern unsigned char dynamic_shared[kDynamicSharedBytes];

/// Order in which the threads of a block run between two barriers.
enum class Order { kAscending, kDescending };
void set_order(Order order);

/// Warp-level collective of all lanes in `mask`: each lane passes in_bytes at `in` and receives out_bytes at
/// `out`; the last lane to arrive runs `combine` on the arrays of all 32 lanes.
void warp_collective(unsigned mask, const void* in, size_t in_bytes, void* out, size_t out_bytes,
                     const std::function<void(const void* in, void* out)>& combine, const char* what,
                     SourceLocation location);
void block_barrier(SourceLocation location);
void cluster_barrier(SourceLocation location);
unsigned cluster_rank();
unsigned cluster_size();
/// The variable in the shared memory of a block of the cluster that is at `address` in the caller's.
void* shared_address_in_block(void* address, unsigned rank);
[[noreturn]] void trap(SourceLocation location);

/// Typed version of warp_collective: combine(In in[32], Out out[32]).
template <typename Out, typename In, typename F>
Out exchange(unsigned mask, const In& in, const F& combine, const char* what, SourceLocation location) {
  Out out;
  warp_collective(
      mask, static_cast<const void*>(&in), sizeof(In), static_cast<void*>(&out), sizeof(Out),
      [&](const void* all_in, void* all_out) {
        combine(static_cast<const In*>(all_in), static_cast<Out*>(all_out));
      },
      what, location);
  return out;
}

/// Each lane receives the value of lane from(lane), or its own if that lane is outside the warp or the mask.
template <typename T, typename F>
T shuffle(unsigned mask, T value, const F& from, SourceLocation location) {
  return exchange<T>(
      mask, value,
      [&](const T* in, T* out) {
        for (int i = 0; i < 32; ++i) {
          const int j = from(i);
          out[i] = j < 0 || j > 31 || !(mask >> j & 1) ? in[i] : in[j];
        }
      },
      "a shuffle", location);
}

template <typename... Parameters, typename... Arguments>
std::string launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, const Arguments&... arguments) {
  return run(grid, block, [&] { kernel(arguments...); });
}

/// The same in clusters of `cluster` blocks.
template <typename... Parameters, typename... Arguments>
std::string launch_clusters(void (*kernel)(Parameters...), dim3 grid, unsigned cluster, dim3 block,
                            const Arguments&... arguments) {
  return run(grid, block, [&] { kernel(arguments...); }, cluster);
}

}  // namespace hero::emulate

namespace hero::ops::cuda {
inline unsigned char* dynamic_shared() { return emulate::dynamic_shared; }
}  // namespace hero::ops::cuda

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

#define HERO_LOCATION \
  hero::emulate::SourceLocation { file, line }
#define HERO_LOCATION_PARAMETERS const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(HERO_LOCATION_PARAMETERS) { hero::emulate::block_barrier(HERO_LOCATION); }
#define __trap() hero::emulate::trap({__FILE__, __LINE__})

inline void __syncwarp(unsigned mask = 0xffffffffu, HERO_LOCATION_PARAMETERS) {
  hero::emulate::exchange<char>(mask, char(), [](const char*, char*) {}, "__syncwarp", HERO_LOCATION);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int from, HERO_LOCATION_PARAMETERS) {
  return hero::emulate::shuffle(mask, value, [&](int) { return from & 31; }, HERO_LOCATION);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, HERO_LOCATION_PARAMETERS) {
  return hero::emulate::shuffle(mask, value, [&](int i) { return i ^ bits; }, HERO_LOCATION);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int by, HERO_LOCATION_PARAMETERS) {
  return hero::emulate::shuffle(mask, value, [&](int i) { return i - by; }, HERO_LOCATION);
}
inline unsigned __ballot_sync(unsigned mask, bool vote, HERO_LOCATION_PARAMETERS) {
  return hero::emulate::exchange<unsigned>(
      mask, vote,
      [&](const bool* in, unsigned* out) {
        unsigned votes = 0;
        for (int i = 0; i < 32; ++i) votes |= (mask >> i & in[i]) << i;
        for (int i = 0; i < 32; ++i) out[i] = votes;
      },
      "__ballot_sync", HERO_LOCATION);
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, HERO_LOCATION_PARAMETERS) {
  return hero::emulate::exchange<unsigned>(
      mask, value,
      [&](const T* in, unsigned* out) {
        for (int i = 0; i < 32; ++i) {
          out[i] = 0;
          for (int j = 0; j < 32; ++j) out[i] |= unsigned((mask >> j & 1) && in[j] == in[i]) << j;
        }
      },
      "__match_any_sync", HERO_LOCATION);
}

template <typename T>
void __stwb(T* to, T value, HERO_LOCATION_PARAMETERS) {
  if (reinterpret_cast<uintptr_t>(to) % alignof(T) != 0) hero::emulate::trap(HERO_LOCATION);
  std::memcpy(to, &value, sizeof(T));
}

template <typename T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to += value;
  return before;
}

inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(unsigned bits) { return bits ? std::countr_zero(bits) + 1 : 0; }

// NOLINTEND(bugprone-reserved-identifier)
