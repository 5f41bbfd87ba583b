#pragma once
// Emulates the instructions of kernels/mma.cuh and the asynchronous copies of <cuda_pipeline.h> on the CPU,
// with the fragment layouts of the PTX manual. Copies are executed only when they are waited for.
#include <bit>

#include "cuda/emulate.h"

namespace hero::emulate {
void async_copy(void* to, const void* from, size_t bytes, size_t zeros, SourceLocation location);
void commit_async_copies();
void wait_for_async_copies(size_t groups_in_flight);
}  // namespace hero::emulate

// NOLINTBEGIN(bugprone-reserved-identifier): the names are CUDA's
inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0,
                                    HERO_LOCATION_PARAMETERS) {
  hero::emulate::async_copy(to, from, bytes, zeros, HERO_LOCATION);
}
inline void __pipeline_commit() { hero::emulate::commit_async_copies(); }
inline void __pipeline_wait_prior(size_t groups) { hero::emulate::wait_for_async_copies(groups); }
// NOLINTEND(bugprone-reserved-identifier)

namespace hero::ops::cuda {

template <bool transposed>
void load_matrices(unsigned (&to)[4], const void* row) {
  struct Registers {
    unsigned value[4];
  };
  const auto got = emulate::exchange<Registers>(
      0xffffffffu, row,
      [](const void* const* rows, Registers* out) {
        for (int matrix = 0; matrix < 4; ++matrix) {
          const auto element = [&](int r, int c) {
            return static_cast<const uint16_t*>(rows[matrix * 8 + r])[c];
          };
          for (int l = 0; l < 32; ++l) {
            const int r = l / 4, c = l % 4 * 2;
            const unsigned low = transposed ? element(c, r) : element(r, c),
                           high = transposed ? element(c + 1, r) : element(r, c + 1);
            out[l].value[matrix] = low | high << 16;
          }
        }
      },
      "ldmatrix", {__FILE__, __LINE__});
  for (int i = 0; i < 4; ++i) to[i] = got.value[i];
}

inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct In {
    unsigned a[4], b[2];
    float c[4];
  };
  struct Out {
    float c[4];
  };
  const auto got =
      emulate::exchange<Out>(0xffffffffu, In{{a[0], a[1], a[2], a[3]}, {b0, b1}, {c[0], c[1], c[2], c[3]}},
                             [](const In* in, Out* out) {
                               // Half h of a register, as bf16.
                               const auto half = [](unsigned bits, int h) {
                                 return std::bit_cast<float>(h ? bits & 0xffff0000u : bits << 16);
                               };
                               float a[16][16], b[16][8];
                               for (int l = 0; l < 32; ++l) {
                                 for (int i = 0; i < 4; ++i) {
                                   for (int h = 0; h < 2; ++h)
                                     a[l / 4 + i % 2 * 8][l % 4 * 2 + i / 2 * 8 + h] = half(in[l].a[i], h);
                                 }
                                 for (int i = 0; i < 2; ++i) {
                                   for (int h = 0; h < 2; ++h)
                                     b[l % 4 * 2 + i * 8 + h][l / 4] = half(in[l].b[i], h);
                                 }
                               }
                               for (int l = 0; l < 32; ++l) {
                                 for (int i = 0; i < 4; ++i) {
                                   const int row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
                                   float sum = in[l].c[i];
                                   for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
                                   out[l].c[i] = sum;
                                 }
                               }
                             },
                             "mma", {__FILE__, __LINE__});
  for (int i = 0; i < 4; ++i) c[i] = got.c[i];
}

}  // namespace hero::ops::cuda
