// The GEMM kernel of gemm_kernel_tile.h with AMX instructions.
#include <ATen/cpu/Utils.h>

#include "ops/cpu/gemm_kernel_tile.h"
#include "ops/cpu/gemm_kernels.h"

namespace hero::cpu {

#if defined(__x86_64__) && defined(__GNUC__)
namespace {

// Inline assembly: the compiler's intrinsics require a literal tile number, which cannot be a template
// parameter, and do not declare their memory accesses.
struct Amx {
  // Operand of ldtilecfg (Intel 64 manual, volume 1, section 18.2).
  struct alignas(64) Configuration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };

  static void configure(TileRows rows) {
    Configuration all;
    const auto set = [&](int tile, int64_t count) {
      all.row_bytes[tile] = 64;
      all.rows[tile] = static_cast<uint8_t>(count);
    };
    const bool two = rows.second > 0;
    for (int tile = 0; tile < 8; ++tile) set(tile, kTileRows);
    for (int tile = 0; tile < 4; ++tile) set(tile, two && tile > 1 ? rows.second : rows.first);
    set(4, rows.first);
    if (two) set(5, rows.second);
    asm volatile("ldtilecfg %0" ::"m"(all));
  }
  static void release() { asm volatile("tilerelease"); }

  template <int Tile>
  HERO_INLINE static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
  }
  template <int Tile>
  HERO_INLINE static void load(const void* from, int64_t row_stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(Tile), "r"(from), "r"(row_stride) : "memory");
  }
  template <int Tile>
  HERO_INLINE static void store(void* to, int64_t row_stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(Tile), "r"(to), "r"(row_stride) : "memory");
  }
  template <int Sum, int A, int B>
  HERO_INLINE static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
  }
};

}  // namespace

GemmKernel amx_gemm_kernel() {
  __builtin_cpu_init();
  // A process must request AMX permission from the kernel.
  static const bool has =
      __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") && at::cpu::init_amx();
  return has ? tile_gemm<Amx> : nullptr;
}

TileConfigScope::TileConfigScope() { TileState<Amx>::enter(); }
TileConfigScope::~TileConfigScope() { TileState<Amx>::leave(); }
#else
GemmKernel amx_gemm_kernel() { return nullptr; }
TileConfigScope::TileConfigScope() = default;
TileConfigScope::~TileConfigScope() = default;
#endif

}  // namespace hero::cpu
