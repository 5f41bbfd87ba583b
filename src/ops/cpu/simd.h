#pragma once
// Scalar functions that g++ can auto-vectorize, vector types, and the attribute that compiles a function for
// several instruction sets and selects one at program start.
#include <c10/util/BFloat16.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

// HERO_SIMD_LEVEL, for tests: 1 or 3 compile only for this x86-64 level, whatever the CPU supports; 4 also
// compiles the kernels whose vectors have 16 lanes, with the instructions of level 3.
#if !defined(__x86_64__) || !defined(__GNUC__) || defined(__clang__) || HERO_SIMD_LEVEL == 1
#define HERO_SIMD
#elif HERO_SIMD_LEVEL == 3
#define HERO_SIMD_HAS_V3
#define HERO_SIMD __attribute__((target("arch=x86-64-v3")))
#elif HERO_SIMD_LEVEL == 4
#define HERO_SIMD_HAS_V3
#define HERO_SIMD_V4 "x86-64-v3"
#define HERO_SIMD __attribute__((target("arch=x86-64-v3")))
#else
#define HERO_SIMD_HAS_V3
#define HERO_SIMD_V4 "x86-64-v4"  // the level of the kernels with 16 lanes
#define HERO_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
#define HERO_INLINE inline __attribute__((always_inline))

namespace hero::cpu {

HERO_INLINE float load(const c10::BFloat16& v) {
  return std::bit_cast<float>(static_cast<uint32_t>(v.x) << 16);
}
HERO_INLINE float load(const float& v) { return v; }
HERO_INLINE double load(const double& v) { return v; }

/// Rounds to nearest even like c10; NaN stays NaN.
HERO_INLINE void store(c10::BFloat16& out, float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : 0u;
  out.x = static_cast<uint16_t>(rounded | nan);
}
HERO_INLINE void store(float& out, float v) { out = v; }
HERO_INLINE void store(double& out, double v) { out = v; }

/// e^x, relative error below 2e-7 (Cody-Waite reduction, degree-6 polynomial), for x clamped to [-87, 88].
/// NaN for NaN: a bit test, because the compiler may assume that there are none and clamp them.
HERO_INLINE float exp_fast(float x) {
  const float clamped = std::fmax(std::fmin(x, 88.0f), -87.0f);
  const float n = __builtin_rintf(clamped * 1.44269504088896341f);
  // Explicit FMAs: otherwise reassociation would add the two parts of ln 2 first and lose precision.
  float r = __builtin_fmaf(n, -0.693359375f, clamped);
  r = __builtin_fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float e = (p * r * r + r + 1.0f) * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  const uint32_t nan = (std::bit_cast<uint32_t>(x) & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : 0u;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(e) | nan);
}
HERO_INLINE double exp_fast(double x) { return std::exp(x); }

/// Accumulation type: fp32 for bf16 and fp32, fp64 for fp64.
template <typename T>
using acc_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Vectors of W floats, and of W words with two bf16 values each. typedef: in `using`, g++ ignores a vector
/// size that depends on a template parameter.
template <int W>
struct Lanes {
  typedef float Float __attribute__((vector_size(4 * W)));
  typedef uint32_t Word __attribute__((vector_size(4 * W)));
};

/// Writes the lanes of a vector.
template <int W>
HERO_INLINE void store_lanes(float* to, const typename Lanes<W>::Float& lanes) {
  __builtin_memcpy(to, &lanes, sizeof lanes);
}
/// Rounds like store().
template <int W>
HERO_INLINE void store_lanes(c10::BFloat16* to, const typename Lanes<W>::Float& lanes) {
  using Word = Lanes<W>::Word;
  typedef uint16_t Halves __attribute__((vector_size(2 * W)));
  Word bits;
  __builtin_memcpy(&bits, &lanes, sizeof bits);
  const Word rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Word nan = (bits & 0x7fffffffu) > 0x7f800000u ? Word{} + 0x7fc0u : Word{};
  const Halves halves = __builtin_convertvector(rounded | nan, Halves);
  __builtin_memcpy(to, &halves, sizeof halves);
}

}  // namespace hero::cpu
