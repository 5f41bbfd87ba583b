// dot_block.h with vdpbf16ps.
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define HERO_DOT_TARGET __attribute__((target("arch=x86-64-v4,avx512bf16")))
#endif
#include "ops/cpu/dot_block.h"
#include "ops/cpu/gemm_block.h"

namespace hero::cpu {

#if defined(__x86_64__) && defined(__GNUC__)
namespace {

struct Vdpbf16ps {
  static HERO_DOT_INLINE void add(DotSums& sum, const DotPairs& a, const DotPairs& b) {
    sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

}  // namespace

BlockGemm avx512_bf16_block() {
  __builtin_cpu_init();
  const bool has = __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512bf16");
  return has ? dot_block<Vdpbf16ps> : nullptr;
}
#else
BlockGemm avx512_bf16_block() { return nullptr; }
#endif

}  // namespace hero::cpu
