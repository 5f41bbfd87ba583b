#pragma once
// The instruction of gemm_kernel_dot.h in portable C++, as Intel's manual defines vdpbf16ps: adds the
// products of the upper elements before those of the lower ones, each with one rounding to nearest even;
// denormal operands and results are flushed to zero.
#include "ops/cpu/gemm_kernel_dot.h"
#include "ops/cpu/portable_bf16.h"

namespace hero::test {

struct PortableDot {
  static void add(cpu::DotSums& sum, const cpu::DotPairs& a, const cpu::DotPairs& b) {
    for (int i = 0; i < cpu::kDotLanes; ++i) {
      const float first = fused(upper(a[i]), upper(b[i]), flushed(sum[i]));
      sum[i] = fused(lower(a[i]), lower(b[i]), first);
    }
  }
};

}  // namespace hero::test
