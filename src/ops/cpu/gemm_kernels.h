#pragma once
// bf16 GEMM kernels by instruction set. AMX multiplies tiles (gemm_kernel_tile.h), AVX512-BF16 pairs
// (gemm_kernel_dot.h); AVX-512, AVX2 and SSE2 convert to fp32 in registers (gemm_kernel_widening.h).
#include <c10/util/BFloat16.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace hero::cpu {

/// c [m, width] (+)= a [m, k] * panel, with a's row stride lda and c's ldc. The panel holds pairs of rows
/// interleaved, [k/2, width, 2]; k even, width a multiple of 16. Accumulates in fp32, in an order that
/// depends only on k.
using GemmKernel = void (*)(int64_t m, int64_t width, int64_t k, const c10::BFloat16* a, int64_t lda,
                            const c10::BFloat16* panel, float* c, int64_t ldc, bool accumulate);

/// The same with `a` transposed and packed like the right-hand side, [k/2, m, 2], m at most 64: for a^T b,
/// packing both operands costs less than transposing one.
using PanelGemmKernel = void (*)(int64_t m, int64_t width, int64_t k, const c10::BFloat16* a,
                                 const c10::BFloat16* panel, float* c, int64_t ldc, bool accumulate);

/// The same as GemmKernel without `accumulate`, with the results rounded to bf16; m and width at most 64.
using RoundedGemmKernel = void (*)(int64_t m, int64_t width, int64_t k, const c10::BFloat16* a, int64_t lda,
                                   const c10::BFloat16* panel, c10::BFloat16* c, int64_t ldc);

/// y [m, n] = x [m, k] w^T for w [n, k], with row strides ldx, ldw, ldy; n and k multiples of 16. In an order
/// that depends only on k.
using SkinnyGemmKernel = void (*)(int64_t m, int64_t n, int64_t k, const c10::BFloat16* x, int64_t ldx,
                                  const c10::BFloat16* w, int64_t ldw, float* y, int64_t ldy);

/// The same with the results rounded to bf16.
using RoundedSkinnyGemmKernel = void (*)(int64_t m, int64_t n, int64_t k, const c10::BFloat16* x, int64_t ldx,
                                         const c10::BFloat16* w, int64_t ldw, c10::BFloat16* y, int64_t ldy);

inline constexpr int64_t kAnyDepth = std::numeric_limits<int64_t>::max();

struct NamedGemmKernel {
  const char* name;  ///< "amx_bf16", "avx512_bf16", "avx512", "avx2", "sse2"
  GemmKernel multiply;
  PanelGemmKernel multiply_panels = nullptr;     ///< null if the instruction set needs rows of `a`
  RoundedGemmKernel multiply_rounded = nullptr;  ///< null if results are rounded afterward
  int64_t rounded_depth = 0;                     ///< maximum k of multiply_rounded
  /// Null, both, if skinny_gemm.cpp converts to fp32.
  SkinnyGemmKernel multiply_skinny = nullptr;
  RoundedSkinnyGemmKernel multiply_skinny_rounded = nullptr;
};

/// The AMX kernel; null if the CPU lacks AMX or the operating system does not permit it.
GemmKernel amx_gemm_kernel();

/// The AVX512-BF16 kernel; none if the CPU lacks it.
std::optional<NamedGemmKernel> avx512_bf16_gemm_kernel();

/// RAII guard: GEMM kernels on this thread keep the AMX tile configuration between calls; without it, every
/// call configures the tiles, which takes about 100 ns. PyTorch GEMMs must not run on the thread meanwhile.
class TileConfigScope {
 public:
  TileConfigScope();
  ~TileConfigScope();
  TileConfigScope(const TileConfigScope&) = delete;
  TileConfigScope& operator=(const TileConfigScope&) = delete;
};

/// Kernels that this CPU supports, fastest first. Whether that is AVX512-BF16 or AVX-512 depends on the
/// processor.
const std::vector<NamedGemmKernel>& gemm_kernels();

/// The kernel of gemm_kernels() with this name, a value of the environment variable HERO_GEMM; the fastest if
/// `name` is null or empty. UserError if there is none.
const NamedGemmKernel& find_gemm_kernel(const char* name);

/// The kernel that HERO_GEMM names, or the fastest.
const NamedGemmKernel& selected_gemm_kernel();

}  // namespace hero::cpu
