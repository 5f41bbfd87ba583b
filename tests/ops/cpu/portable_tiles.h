#pragma once
// The tile instructions of gemm_kernel_tile.h in portable C++, as Intel's manual defines them: tdpbf16ps sums
// the products of even and odd elements separately, with one rounding each, then adds both sums to the tile;
// rounds to nearest even and flushes denormal operands and results to zero. Loads and stores access only the
// configured rows; a load zeroes the others.
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "ops/cpu/gemm_kernel_tile.h"
#include "ops/cpu/portable_bf16.h"

namespace hero::test {

class PortableTiles {
 public:
  static void configure(cpu::TileRows rows) {
    state() = {};
    for (int tile = 0; tile < 8; ++tile) state().rows[tile] = cpu::kTileRows;
    const bool two = rows.second > 0;
    for (const int tile : {0, 1, 4}) state().rows[tile] = rows.first;
    for (const int tile : {2, 3}) state().rows[tile] = two ? rows.second : rows.first;
    if (two) state().rows[5] = rows.second;
  }
  static void release() { state() = {}; }

  template <int Tile>
  static void zero() {
    words<Tile>() = {};
  }
  template <int Tile>
  static void load(const void* from, int64_t row_stride) {
    zero<Tile>();
    for (int64_t r = 0; r < rows<Tile>(); ++r)
      std::memcpy(words<Tile>()[r].data(), static_cast<const char*>(from) + r * row_stride, 64);
  }
  template <int Tile>
  static void store(void* to, int64_t row_stride) {
    for (int64_t r = 0; r < rows<Tile>(); ++r)
      std::memcpy(static_cast<char*>(to) + r * row_stride, words<Tile>()[r].data(), 64);
  }
  template <int Sum, int A, int B>
  static void dot() {
    if (rows<Sum>() != rows<A>() || rows<B>() != 16) std::abort();  // the processor raises an exception
    for (int64_t r = 0; r < rows<Sum>(); ++r) {
      for (int64_t column = 0; column < 16; ++column) {
        float even = 0, odd = 0;
        for (int64_t pair = 0; pair < 16; ++pair) {
          const uint32_t a = words<A>()[r][pair], b = words<B>()[pair][column];
          even = fused(lower(a), lower(b), even);
          odd = fused(upper(a), upper(b), odd);
        }
        uint32_t& sum = words<Sum>()[r][column];
        sum = std::bit_cast<uint32_t>(flushed(flushed(std::bit_cast<float>(sum)) + flushed(even + odd)));
      }
    }
  }

 private:
  struct State {
    std::array<std::array<std::array<uint32_t, 16>, 16>, 8> words{};
    std::array<int64_t, 8> rows{};  // 0: not configured
  };
  static State& state() {
    thread_local State state;
    return state;
  }
  template <int Tile>
  static auto& words() {
    return state().words[Tile];
  }
  template <int Tile>
  static int64_t rows() {
    if (state().rows[Tile] == 0) std::abort();  // the processor raises an exception
    return state().rows[Tile];
  }
};

}  // namespace hero::test
