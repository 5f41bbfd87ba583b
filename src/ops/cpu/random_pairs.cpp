#include "ops/cpu/random_pairs.h"

#include <array>
#include <bit>
#include <cmath>
#include <numbers>

#include "ops/cpu/simd.h"

namespace hero::cpu {
namespace {

constexpr uint64_t kExponentOf52 = uint64_t{1023 + 52} << 52, kMantissa = (uint64_t{1} << 52) - 1;

// An integer below 2^52, exactly; a conversion instruction for vectors exists with AVX-512 only.
HERO_INLINE double to_double(uint64_t n) { return std::bit_cast<double>(n | kExponentOf52) - 0x1p52; }

// (word + 1/2) * unit
HERO_INLINE double between(uint32_t word, double unit) { return (to_double(word) + 0.5) * unit; }

// log x of a positive, finite, normal x = m 2^e with m in (1/sqrt 2, sqrt 2]:
// log m = 2 artanh s = 2 s (1 + s^2/3 + s^4/5 + ...) with s = (m-1)/(m+1), |s| < 0.172; the terms from s^22
// on are below 1e-18.
HERO_INLINE double log_of(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  double m = std::bit_cast<double>((bits & kMantissa) | std::bit_cast<uint64_t>(1.0));
  double e = to_double(bits >> 52) - 1023;
  const bool large = m > std::numbers::sqrt2;
  m = large ? 0.5 * m : m;
  e = large ? e + 1 : e;
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 1.0 / 21;
#pragma GCC unroll 16
  for (int k = 19; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return e * std::numbers::ln2 + 2 * s * sum;
}

constexpr auto kFactorials = [] {
  std::array<double, 17> all{1};
  for (size_t k = 1; k < all.size(); ++k) all[k] = static_cast<double>(k) * all[k - 1];
  return all;
}();

// Taylor series of cos y (n even) or sin y / y (n odd) in z = y^2 up to y^n: 1 - z / 2! + z^2 / 4! - ... For
// |y| <= pi/4 the terms left out of n = 15 and 16 are below 1e-16.
template <int n>
HERO_INLINE double taylor(double z) {
  double sum = 0;
#pragma GCC unroll 16
  for (int k = n; k >= 0; k -= 2) sum = sum * z + (k % 4 < 2 ? 1 : -1) / kFactorials[k];
  return sum;
}

// The first two words of each counter. Not for several instruction sets: vectors of 4 or 8 words take longer,
// because the halves of their products must be gathered.
void philox(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, uint32_t* __restrict a,
            uint32_t* __restrict b) {
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t counter = first + static_cast<uint64_t>(i);
    auto c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32),
         c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32),
         key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const uint64_t p = uint64_t{0xD2511F53u} * c0, q = uint64_t{0xCD9E8D57u} * c2;
      c0 = static_cast<uint32_t>(q >> 32) ^ c1 ^ key0;
      c1 = static_cast<uint32_t>(q);
      c2 = static_cast<uint32_t>(p >> 32) ^ c3 ^ key1;
      c3 = static_cast<uint32_t>(p);
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    a[i] = c0;
    b[i] = c1;
  }
}

void uniform(int64_t n, const uint32_t* __restrict a, const uint32_t* __restrict b, double* __restrict out) {
  for (int64_t i = 0; i < n; ++i) {
    out[2 * i] = between(a[i], 0x1p-32);
    out[2 * i + 1] = between(b[i], 0x1p-32);
  }
}

HERO_SIMD void box_muller(int64_t n, const uint32_t* __restrict a, const uint32_t* __restrict b,
                          double* __restrict out) {
  double cosines[kRandomPairs], sines[kRandomPairs];
  for (int64_t i = 0; i < n; ++i) {
    const double radius = std::sqrt(-2 * log_of(between(a[i], 0x1p-32)));
    // In quarter turns; the nearest integer, and the rest, exactly.
    const double turns = between(b[i], 0x1p-30), quarter = (turns + 0x1p52) - 0x1p52;
    const double y = (turns - quarter) * (std::numbers::pi / 2), z = y * y;
    const double sine = y * taylor<15>(z), cosine = taylor<16>(z);
    // Bits instead of ||, so that the loop has no branches.
    const bool odd = (quarter == 1) | (quarter == 3), left = (quarter == 1) | (quarter == 2),
               lower = (quarter == 2) | (quarter == 3);
    cosines[i] = (left ? -radius : radius) * (odd ? sine : cosine);
    sines[i] = (lower ? -radius : radius) * (odd ? cosine : sine);
  }
  for (int64_t i = 0; i < n; ++i) {
    out[2 * i] = cosines[i];
    out[2 * i + 1] = sines[i];
  }
}

}  // namespace

void uniform_pairs(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, double* out) {
  uint32_t a[kRandomPairs], b[kRandomPairs];
  philox(seed, stream, first, n, a, b);
  uniform(n, a, b, out);
}

void normal_pairs(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, double* out) {
  uint32_t a[kRandomPairs], b[kRandomPairs];
  philox(seed, stream, first, n, a, b);
  box_muller(n, a, b, out);
}

}  // namespace hero::cpu
