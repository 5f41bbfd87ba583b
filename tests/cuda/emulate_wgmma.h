#pragma once
// Emulates the instructions of kernels/wgmma.cuh on the CPU, with the operand and fragment layouts of the PTX
// manual and of CUTLASS' make_gmma_desc<Major::MN>. Products are executed only when they are waited for, and
// end the program if copies to shared memory were not fenced.
#include <bit>

#include "cuda/emulate_mma.h"

namespace hero::emulate {

void fence_async_copies();
void async_product(const std::function<void()>& product, SourceLocation location);
void commit_async_products();
void wait_for_async_products(size_t groups_in_flight);

/// Element (k, column) of the operand [16, width] that a descriptor of a transposed, swizzled operand names.
inline float operand_element(uint64_t descriptor, int k, int column) {
  const auto field = [&](int shift) { return static_cast<uint32_t>(descriptor >> shift & 0x3fff) << 4; };
  const uint32_t start = field(0), leading = field(16), stride = field(32);
  const uint32_t offset = start + column / 64 * leading + k / 8 * stride + k % 8 * 128 + column % 64 * 2;
  const uint32_t swizzled = offset ^ (offset >> 7 & 7) << 4;
  uint16_t bits;
  std::memcpy(&bits, dynamic_shared + swizzled, sizeof bits);
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

}  // namespace hero::emulate

namespace hero::ops::cuda {

inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(shared) - emulate::dynamic_shared);
}
inline void prefetch_line(const void* address) {
  const auto read = *static_cast<const volatile unsigned char*>(address);
  static_cast<void>(read);
}
inline void fence_shared_writes() { emulate::fence_async_copies(); }
inline void fence_accumulators() {}
inline void commit_products() { emulate::commit_async_products(); }
template <int groups>
void wait_for_products() {
  emulate::wait_for_async_products(groups);
}

template <int N>
void multiply_add_async(float (&c)[N], uint64_t a, uint64_t b, HERO_LOCATION_PARAMETERS) {
  const int thread = static_cast<int>(threadIdx.x) % 128, row = thread / 32 * 16 + thread % 32 / 4,
            column = thread % 4 * 2;
  emulate::async_product(
      [&c, a, b, row, column] {
        float left[2][16];
        for (int h = 0; h < 2; ++h) {
          for (int k = 0; k < 16; ++k) left[h][k] = emulate::operand_element(a, k, row + 8 * h);
        }
        for (int j = 0; j < N / 4; ++j) {
          for (int i = 0; i < 2; ++i) {
            for (int k = 0; k < 16; ++k) {
              const float right = emulate::operand_element(b, k, 8 * j + column + i);
              for (int h = 0; h < 2; ++h) c[4 * j + 2 * h + i] += left[h][k] * right;
            }
          }
        }
      },
      HERO_LOCATION);
}

}  // namespace hero::ops::cuda
