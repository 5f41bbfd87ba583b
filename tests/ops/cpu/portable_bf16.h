#pragma once
// Rounding of Intel's bf16 instructions in portable C++: fused multiply-add with one rounding to nearest
// even; denormal operands and results are flushed to zero.
#include <bit>
#include <cmath>
#include <cstdint>

namespace hero::test {

inline float flushed(float x) { return std::abs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
/// The upper and lower element of a word.
inline float upper(uint32_t word) { return flushed(std::bit_cast<float>(word & 0xffff0000u)); }
inline float lower(uint32_t word) { return flushed(std::bit_cast<float>(word << 16)); }
inline float fused(float x, float y, float sum) { return flushed(std::fma(x, y, sum)); }

}  // namespace hero::test
