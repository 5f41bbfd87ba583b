#pragma once
// The vocabulary of CUDA C++ on the processor, to run the kernels' own code where there is no device. Blocks
// run one after another; the threads of a block are fibers that run until they meet at a barrier or a
// shuffle.
//
// Mistakes it reports: a barrier or shuffle that not every thread (lane) reaches, or that threads reach at
// different places of the source; a trap. Shared memory is filled with ones (NaN) before each block, so what
// is read before it was written shows. The order in which threads run can be turned around: a missing barrier
// then changes results in one of the two orders. Built with -fsanitize=address,undefined, accesses beyond an
// array show as in any program (-fsanitize-sections=emulated_shared for shared memory).
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

/// Where in the source a thread waits.
struct Place {
  const char* file;
  int line;
};

/// Runs `thread` once for every thread of every block. Returns what went wrong first, or "".
std::string run(dim3 grid, dim3 block, const std::function<void()>& thread);

/// The order in which the threads of a block run between two barriers.
enum class Order { kAscending, kDescending };
void set_order(Order order);

/// The current thread's part in something that all lanes of `mask` do together: each leaves `bytes` at `in`
/// and receives as many at `out`; the last lane to arrive runs `together` on the arrays of all 32 lanes.
void meet(unsigned mask, const void* in, size_t in_bytes, void* out, size_t out_bytes,
          const std::function<void(const void* in, void* out)>& together, const char* what, Place place);
void wait_for_block(Place place);
[[noreturn]] void trap(Place place);

/// Typed form of `meet`: together(In in[32], Out out[32]).
template <typename Out, typename In, typename F>
Out exchange(unsigned mask, const In& in, const F& together, const char* what, Place place) {
  Out out;
  meet(
      mask, static_cast<const void*>(&in), sizeof(In), static_cast<void*>(&out), sizeof(Out),
      [&](const void* all_in, void* all_out) {
        together(static_cast<const In*>(all_in), static_cast<Out*>(all_out));
      },
      what, place);
  return out;
}

/// Each lane receives the value of lane from(lane); a lane outside the warp or the mask: its own.
template <typename T, typename F>
T shuffle(unsigned mask, T value, const F& from, Place place) {
  return exchange<T>(
      mask, value,
      [&](const T* in, T* out) {
        for (int i = 0; i < 32; ++i) {
          const int j = from(i);
          out[i] = j < 0 || j > 31 || !(mask >> j & 1) ? in[i] : in[j];
        }
      },
      "a shuffle", place);
}

template <typename... Parameters, typename... Arguments>
std::string launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, const Arguments&... arguments) {
  return run(grid, block, [&] { kernel(arguments...); });
}

}  // namespace hero::emulate

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

#define HERO_PLACE \
  hero::emulate::Place { file, line }
#define HERO_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(HERO_HERE) { hero::emulate::wait_for_block(HERO_PLACE); }
#define __trap() hero::emulate::trap({__FILE__, __LINE__})

inline void __syncwarp(unsigned mask = 0xffffffffu, HERO_HERE) {
  hero::emulate::exchange<char>(mask, char(), [](const char*, char*) {}, "__syncwarp", HERO_PLACE);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int from, HERO_HERE) {
  return hero::emulate::shuffle(mask, value, [&](int) { return from & 31; }, HERO_PLACE);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, HERO_HERE) {
  return hero::emulate::shuffle(mask, value, [&](int i) { return i ^ bits; }, HERO_PLACE);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int by, HERO_HERE) {
  return hero::emulate::shuffle(mask, value, [&](int i) { return i - by; }, HERO_PLACE);
}
inline unsigned __ballot_sync(unsigned mask, bool vote, HERO_HERE) {
  return hero::emulate::exchange<unsigned>(
      mask, vote,
      [&](const bool* in, unsigned* out) {
        unsigned votes = 0;
        for (int i = 0; i < 32; ++i) votes |= (mask >> i & in[i]) << i;
        for (int i = 0; i < 32; ++i) out[i] = votes;
      },
      "__ballot_sync", HERO_PLACE);
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, HERO_HERE) {
  return hero::emulate::exchange<unsigned>(
      mask, value,
      [&](const T* in, unsigned* out) {
        for (int i = 0; i < 32; ++i) {
          out[i] = 0;
          for (int j = 0; j < 32; ++j) out[i] |= unsigned((mask >> j & 1) && in[j] == in[i]) << j;
        }
      },
      "__match_any_sync", HERO_PLACE);
}

template <typename T>
void __stwb(T* to, T value) {
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
