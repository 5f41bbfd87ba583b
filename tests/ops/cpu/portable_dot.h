#pragma once
// The instruction of dot_block.h in portable C++, as Intel's manual defines vdpbf16ps: the upper numbers of
// the words are multiplied and added before the lower ones, each with one rounding to nearest even; denormal
// operands and results are zero.
#include <bit>
#include <cmath>

#include "ops/cpu/dot_block.h"

namespace hero::test {

struct PortableDot {
  static void add(cpu::DotSums& sum, const cpu::DotPairs& a, const cpu::DotPairs& b) {
    for (int i = 0; i < cpu::kDotLanes; ++i) {
      const float first = fused(upper(a[i]), upper(b[i]), flushed(sum[i]));
      sum[i] = fused(lower(a[i]), lower(b[i]), first);
    }
  }

 private:
  static float flushed(float x) { return std::abs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
  static float upper(uint32_t word) { return flushed(std::bit_cast<float>(word & 0xffff0000u)); }
  static float lower(uint32_t word) { return flushed(std::bit_cast<float>(word << 16)); }
  static float fused(float x, float y, float sum) { return flushed(std::fma(x, y, sum)); }
};

}  // namespace hero::test
