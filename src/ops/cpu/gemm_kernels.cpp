#include "ops/cpu/gemm_kernels.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include "io/error.h"
#include "ops/cpu/gemm_kernel_widening.h"

namespace hero::cpu {
namespace {

using bf16 = c10::BFloat16;

// The kernels of one instruction set: lanes of a vector, rows of a strip, accumulators.
#define HERO_WIDENING_GEMM(name, W, R, Sums, ...)                                                           \
  __VA_ARGS__ void name(int64_t m, int64_t width, int64_t k, const bf16* a, int64_t lda, const bf16* panel, \
                        float* c, int64_t ldc, bool accumulate) {                                           \
    widening_gemm<W, R, Sums>(m, width, k, WideningRows{a, lda}, panel, c, ldc, accumulate);                \
  }                                                                                                         \
  __VA_ARGS__ void name##_panels(int64_t m, int64_t width, int64_t k, const bf16* a, const bf16* panel,     \
                                 float* c, int64_t ldc, bool accumulate) {                                  \
    widening_gemm<W, R, Sums>(m, width, k, WideningPanel{a, 2 * m}, panel, c, ldc, accumulate);             \
  }                                                                                                         \
  __VA_ARGS__ void name##_rounded(int64_t m, int64_t width, int64_t k, const bf16* a, int64_t lda,          \
                                  const bf16* panel, bf16* c, int64_t ldc) {                                \
    widening_gemm_rounded<W, R, Sums>(m, width, k, WideningRows{a, lda}, panel, c, ldc);                    \
  }                                                                                                         \
  constexpr NamedGemmKernel name##_kernel{#name, name, name##_panels, name##_rounded, kAnyDepth};

HERO_WIDENING_GEMM(sse2, 4, 4, 8)
#ifdef HERO_SIMD_HAS_V3
HERO_WIDENING_GEMM(avx2, 8, 6, 12, __attribute__((target("arch=x86-64-v3"))))
#endif
#ifdef HERO_SIMD_V4
HERO_WIDENING_GEMM(avx512, 16, 16, 16, __attribute__((target("arch=" HERO_SIMD_V4))))
#endif
#undef HERO_WIDENING_GEMM

#if defined(__x86_64__) && defined(__GNUC__)
// Whether vdpbf16ps is slower than the fp32 instructions that it replaces: it takes twice their time on
// Intel's processors since those with AVX512-FP16, half on others. Not measured: beside another thread on the
// same core the fp32 instructions take twice as long, and results must not depend on that.
bool dot_is_slow() { return __builtin_cpu_is("intel") && __builtin_cpu_supports("avx512fp16"); }
#endif

std::vector<NamedGemmKernel> find_kernels() {
  std::vector<NamedGemmKernel> list;
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
#ifdef HERO_SIMD_V4
  if (__builtin_cpu_supports(HERO_SIMD_V4)) list.push_back(avx512_kernel);
#endif
#ifdef HERO_SIMD_HAS_V3
  if (__builtin_cpu_supports("x86-64-v3")) list.push_back(avx2_kernel);
#endif
  const auto dot = avx512_bf16_gemm_kernel();
  if (dot) list.insert(list.begin() + (dot_is_slow() ? 1 : 0), *dot);
  if (const auto multiply = amx_gemm_kernel()) {
    NamedGemmKernel amx{"amx_bf16", multiply};
    if (dot && !dot_is_slow()) {
      amx.multiply_skinny = dot->multiply_skinny;
      amx.multiply_skinny_rounded = dot->multiply_skinny_rounded;
    }
    list.insert(list.begin(), amx);
  }
#endif
  list.push_back(sse2_kernel);
  return list;
}

}  // namespace

const std::vector<NamedGemmKernel>& gemm_kernels() {
  static const std::vector<NamedGemmKernel> available = find_kernels();
  return available;
}

const NamedGemmKernel& find_gemm_kernel(const char* name) {
  const std::string_view wanted = name ? name : "";
  std::string names;
  for (const auto& kernel : gemm_kernels()) {
    if (wanted.empty() || kernel.name == wanted) return kernel;
    names += std::string(names.empty() ? "" : ", ") + kernel.name;
  }
  throw UserError("HERO_GEMM: found " + std::string(wanted) + ", expected one of " + names);
}

const NamedGemmKernel& selected_gemm_kernel() {
  static const NamedGemmKernel& kernel = find_gemm_kernel(std::getenv("HERO_GEMM"));
  return kernel;
}

}  // namespace hero::cpu
