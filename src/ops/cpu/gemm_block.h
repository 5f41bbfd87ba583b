#pragma once
// Blocks of bf16 matrix products. With AMX tiles are multiplied (tile_block.h), with AVX512-BF16 pairs
// (dot_block.h); with AVX-512, AVX2 or plain SSE2 the packed panel is widened to fp32 in registers, and rows
// come from a strip of fp32 numbers.
#include <c10/util/BFloat16.h>

#include <cstdint>
#include <vector>

namespace hero::cpu {

/// c [m, width] (+)= a [m, k] * panel, with a's row stride lda and c's ldc. The panel holds pairs of rows
/// interleaved, [k/2, width, 2]; k even, width a multiple of 16. Sums are fp32, and their order depends on k
/// alone.
using BlockGemm = void (*)(int64_t m, int64_t width, int64_t k, const c10::BFloat16* a, int64_t lda,
                           const c10::BFloat16* panel, float* c, int64_t ldc, bool accumulate);

struct NamedBlockGemm {
  const char* name;  ///< "amx_bf16", "avx512_bf16", "avx512", "avx2", "sse2"
  BlockGemm multiply;
};

/// The block with AMX; null where the processor lacks it or the system does not let a process use it.
BlockGemm amx_block();

/// The block with AVX512-BF16; null where the processor lacks it.
BlockGemm avx512_bf16_block();

/// While one exists, blocks that its thread multiplies share one configuration of the processor's tiles;
/// without one, each block configures them for itself, which takes about 100 ns. None of the library's matrix
/// products may run on that thread meanwhile.
class BlockScope {
 public:
  BlockScope();
  ~BlockScope();
  BlockScope(const BlockScope&) = delete;
  BlockScope& operator=(const BlockScope&) = delete;
};

/// Those that this processor runs, the fastest first.
const std::vector<NamedBlockGemm>& block_gemms();

}  // namespace hero::cpu
