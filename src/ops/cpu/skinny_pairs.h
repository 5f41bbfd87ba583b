#pragma once
// Loads of two vectors at a time for the skinny GEMM kernels (skinny_gemm.cpp).
#include <c10/util/BFloat16.h>

#include "ops/cpu/skinny_sums.h"

namespace hero::cpu {

// W accumulators of W elements at a time leave half of the registers free.
template <int W>
constexpr int kPair = 2 * W;

// Loads kPair elements, split into even and odd indices; each word holds one of each.
template <int W>
HERO_INLINE void load_pair(const c10::BFloat16* from, Float<W>& even, Float<W>& odd) {
  typename Lanes<W>::Word words;
  __builtin_memcpy(&words, from, sizeof words);
  even = reinterpret_cast<Float<W>>(words << 16);
  odd = reinterpret_cast<Float<W>>(words & 0xffff0000u);
}

// The same kPair elements of fp32 in another order: sums only pair those of two rows.
template <int W>
HERO_INLINE void load_pair(const float* from, Float<W>& first, Float<W>& second) {
  __builtin_memcpy(&first, from, sizeof first);
  __builtin_memcpy(&second, from + W, sizeof second);
}

// g++ would read a vector that is multiplied several times from memory each time.
template <typename Vector>
HERO_INLINE void keep_in_register([[maybe_unused]] Vector& values) {
#if defined(__x86_64__) && HERO_SIMD_LEVEL != 4  // there 16 lanes are two registers
  asm("" : "+v"(values));
#endif
}

}  // namespace hero::cpu
