#pragma once
// bf16 GEMM kernel for CPUs with tile registers of at most 16 rows of 64 bytes, whose shapes are configured
// before use. Each row of an `a` tile holds 32 elements of a row, each row of a panel tile two rows of 16
// columns, and one instruction adds their product to a tile of fp32 accumulators. The instructions are a
// template parameter, so tests can run the kernel with a portable version.
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ops/cpu/simd.h"

namespace hero::cpu {

inline constexpr int64_t kTileRows = 16, kTileColumns = 16;  // of an accumulator tile
inline constexpr int64_t kTileInner = 32;                    // of k per instruction
inline constexpr int64_t kTileDepth = 512;  // block size of k: the rows of two tiles fit in the L1 cache

/// Row counts of the two `a` tiles; only one tile is in use if second is 0.
struct TileRows {
  int64_t first = 0, second = 0;
  bool operator==(const TileRows&) const = default;
};

/// A thread's tiles stay configured between enter() and leave(), which nest. Nothing else, such as PyTorch's
/// GEMMs, may use tiles meanwhile.
template <class Tiles>
class TileState {
 public:
  static void enter() { ++state().depth; }
  static void leave() {
    if (--state().depth > 0 || state().rows == TileRows{}) return;
    state().rows = {};
    Tiles::release();
  }
  static void configure(TileRows rows) {
    if (state().rows == rows) return;
    state().rows = rows;
    Tiles::configure(rows);
  }

 private:
  static TileState& state() {
    thread_local TileState state;
    return state;
  }

  int64_t depth = 0;
  TileRows rows;
};

// Calls f(0), ..., f(N - 1) with compile-time constants.
template <int N, class F>
HERO_INLINE void unrolled(const F& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

// Micro-kernel: R row tiles by C column tiles. Tile registers 0 to 3 are accumulators (2 x 2 if R = 2),
// followed by those of `a` and of the panel.
template <class Tiles, int R, int C>
struct TileProduct {
  static_assert(R <= 2 && R * C <= 4);
  static constexpr int kA = 4, kB = kA + R, kBs = 8 - kB;
  static constexpr int sum(int r, int j) { return 2 * r + j; }

  // c (+)= a * b over `inner` elements of k; words of b hold pairs of rows. a and c have `rows` rows.
  static void add(int64_t rows, int64_t inner, const c10::BFloat16* a, int64_t lda, const uint32_t* b,
                  int64_t ldb, float* c, int64_t ldc, bool accumulate) {
    unrolled<R>([&](auto r) {
      unrolled<C>([&](auto j) {
        constexpr int kSum = sum(r, j);
        if (accumulate) {
          Tiles::template load<kSum>(c + r * kTileRows * ldc + j * kTileColumns, ldc * 4);
        } else {
          Tiles::template zero<kSum>();
        }
      });
    });
    const int64_t whole = inner / kTileInner * kTileInner;
    for (int64_t i = 0; i < whole; i += kTileInner) step(a + i, lda, b + i / 2 * ldb, ldb);
    if (whole < inner) last_step(rows, inner - whole, a + whole, lda, b + whole / 2 * ldb, ldb);
    unrolled<R>([&](auto r) {
      unrolled<C>([&](auto j) {
        Tiles::template store<sum(r, j)>(c + r * kTileRows * ldc + j * kTileColumns, ldc * 4);
      });
    });
  }

 private:
  HERO_INLINE static void step(const c10::BFloat16* a, int64_t lda, const uint32_t* b, int64_t ldb) {
    unrolled<C>([&](auto j) {
      Tiles::template load<kB + j % kBs>(b + j * kTileColumns, ldb * 4);
      unrolled<R>([&](auto r) {
        if constexpr (j == 0) Tiles::template load<kA + r>(a + r * kTileRows * lda, lda * 2);
        Tiles::template dot<sum(r, j), kA + r, kB + j % kBs>();
      });
    });
  }

  // A partial tile of k, zero-padded.
  static void last_step(int64_t rows, int64_t inner, const c10::BFloat16* a, int64_t lda, const uint32_t* b,
                        int64_t ldb) {
    alignas(64) c10::BFloat16 a_padded[R * kTileRows * kTileInner] = {};
    alignas(64) uint32_t b_padded[kTileInner / 2 * C * kTileColumns] = {};
    for (int64_t r = 0; r < rows; ++r) std::memcpy(a_padded + r * kTileInner, a + r * lda, inner * 2);
    for (int64_t p = 0; p < inner / 2; ++p)
      std::memcpy(b_padded + p * C * kTileColumns, b + p * ldb, C * kTileColumns * 4);
    step(a_padded, kTileInner, b_padded, C * kTileColumns);
  }
};

// All columns of at most 32 rows.
template <class Tiles>
void tile_rows(int64_t rows, int64_t width, int64_t inner, const c10::BFloat16* a, int64_t lda,
               const uint32_t* b, float* c, int64_t ldc, bool accumulate) {
  const bool two = rows > kTileRows;
  TileState<Tiles>::configure(two ? TileRows{kTileRows, rows - kTileRows} : TileRows{rows, 0});
  for (int64_t j = 0; j < width;) {
    const int64_t columns = std::min<int64_t>(two ? 2 : 4, (width - j) / kTileColumns);
    const auto add = [&]<int R, int C>(std::integer_sequence<int, R, C>) {
      TileProduct<Tiles, R, C>::add(rows, inner, a, lda, b + j, width, c + j, ldc, accumulate);
    };
    if (two && columns == 2) add(std::integer_sequence<int, 2, 2>{});
    if (two && columns == 1) add(std::integer_sequence<int, 2, 1>{});
    if (!two && columns == 4) add(std::integer_sequence<int, 1, 4>{});
    if (!two && columns == 3) add(std::integer_sequence<int, 1, 3>{});
    if (!two && columns == 2) add(std::integer_sequence<int, 1, 2>{});
    if (!two && columns == 1) add(std::integer_sequence<int, 1, 1>{});
    j += columns * kTileColumns;
  }
}

/// A GemmKernel (gemm_kernels.h). Within 32 elements of k, even and odd indices are summed separately, then
/// both sums are added to c: at most k + 2 ceil(k / 32) additions of exact products, each rounded to nearest,
/// which bounds the error as in gemm_kernel_dot.h; denormals are flushed to zero.
template <class Tiles>
void tile_gemm(int64_t m, int64_t width, int64_t k, const c10::BFloat16* a, int64_t lda,
               const c10::BFloat16* panel, float* c, int64_t ldc, bool accumulate) {
  TileState<Tiles>::enter();
  const auto* words = reinterpret_cast<const uint32_t*>(panel);
  for (int64_t i = 0; i < k; i += kTileDepth) {
    const int64_t inner = std::min(kTileDepth, k - i);
    for (int64_t r = 0; r < m; r += 2 * kTileRows) {
      tile_rows<Tiles>(std::min(2 * kTileRows, m - r), width, inner, a + r * lda + i, lda,
                       words + i / 2 * width, c + r * ldc, ldc, accumulate || i > 0);
    }
  }
  TileState<Tiles>::leave();
}

}  // namespace hero::cpu
