// The GEMM kernels of gemm_kernel_dot.h and skinny_dot.h with vdpbf16ps.
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define HERO_DOT_TARGET __attribute__((target("arch=x86-64-v4,avx512bf16")))
#endif
#include "ops/cpu/gemm_kernel_dot.h"
#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/skinny_dot.h"

namespace hero::cpu {

#if defined(__x86_64__) && defined(__GNUC__)
namespace {

struct Vdpbf16ps {
  static HERO_DOT_INLINE void add(DotSums& sum, const DotPairs& a, const DotPairs& b) {
    sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

bool has_avx512_bf16() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512bf16");
}

}  // namespace

std::optional<NamedGemmKernel> avx512_bf16_gemm_kernel() {
  if (!has_avx512_bf16()) return std::nullopt;
  return NamedGemmKernel{"avx512_bf16",
                         dot_gemm<Vdpbf16ps>,
                         dot_gemm_panels<Vdpbf16ps>,
                         dot_gemm_rounded<Vdpbf16ps>,
                         kDotDepth,
                         skinny_dot<Vdpbf16ps, float>,
                         skinny_dot<Vdpbf16ps, c10::BFloat16>};
}
#else
std::optional<NamedGemmKernel> avx512_bf16_gemm_kernel() { return std::nullopt; }
#endif

}  // namespace hero::cpu
