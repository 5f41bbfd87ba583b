#pragma once
// Pairs of random numbers from Philox 4x32-10 (Salmon et al., 2011), many at a time. Pair i of a stream has
// the first two words of the counter i, as at::Philox4_32(seed, stream, i) returns them. The results have the
// same bits on every processor: the file is compiled without contraction to FMAs, and calls no mathematical
// library.
#include <cstdint>

namespace hero::cpu {

inline constexpr int64_t kRandomPairs = 256;  ///< maximum number of pairs per call

/// Samples 2i and 2i+1 of the pairs i = first ... first+n-1, uniform in (0, 1) with 32 random bits each.
void uniform_pairs(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, double* out);

/// The same with N(0, 1) (Box-Muller): of uniform samples u and v, sqrt(-2 log u) times the cosine and the
/// sine of 2 pi v. Absolute error below 4e-15.
void normal_pairs(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, double* out);

}  // namespace hero::cpu
