#pragma once
// The tile instructions of tile_block.h in portable C++, as Intel's manual defines them: tdpbf16ps adds up
// the products of even and of odd numbers apart, both with one rounding each, then both sums to the tile;
// rounding is to nearest even, denormal operands and results are zero. Loads and stores touch the configured
// rows alone, and a load sets the others to zero.
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "ops/cpu/portable_bf16.h"
#include "ops/cpu/tile_block.h"

namespace hero::test {

class PortableTiles {
 public:
  static void configure(cpu::TileRows rows) {
    mine() = {};
    for (int tile = 0; tile < 8; ++tile) mine().rows[tile] = cpu::kTileRows;
    const bool two = rows.second > 0;
    for (const int tile : {0, 1, 4}) mine().rows[tile] = rows.first;
    for (const int tile : {2, 3}) mine().rows[tile] = two ? rows.second : rows.first;
    if (two) mine().rows[5] = rows.second;
  }
  static void release() { mine() = {}; }

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
  static State& mine() {
    thread_local State state;
    return state;
  }
  template <int Tile>
  static auto& words() {
    return mine().words[Tile];
  }
  template <int Tile>
  static int64_t rows() {
    if (mine().rows[Tile] == 0) std::abort();  // the processor raises an exception
    return mine().rows[Tile];
  }
};

}  // namespace hero::test
