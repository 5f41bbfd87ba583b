#pragma once
// Rows of attention scores, processed in whole vectors.
#include <cmath>
#include <cstdint>

#include "ops/cpu/simd.h"

namespace hero::cpu {

constexpr int kVector = 16;

/// Sets all but the first n elements of a vector to `rest`. Writes the whole vector, because scalar stores
/// would break store-to-load forwarding of the next vector read.
HERO_INLINE void fill_from(float* x, int64_t n, float rest) {
  const int count = static_cast<int>(n);
  for (int i = 0; i < kVector; ++i) x[i] = i < count ? x[i] : rest;
}

/// Sets the first n elements of a vector to `value`, as fill_from.
HERO_INLINE void fill_before(float* x, int64_t n, float value) {
  const int count = static_cast<int>(n);
  for (int i = 0; i < kVector; ++i) x[i] = i < count ? value : x[i];
}

/// Start of the vector that contains element i.
HERO_INLINE int64_t vector_of(int64_t i) { return i & -kVector; }
/// Start of the vector that contains the last of `valid` scores.
HERO_INLINE int64_t last_vector(int64_t valid) { return vector_of(valid - 1); }

template <typename T>
HERO_INLINE void zero_from(T* x, int64_t first, int64_t end) {
  for (int64_t i = first; i < end; ++i) store(x[i], 0.0f);
}

constexpr float kMasked = -1e30f;  // a score whose exponential is zero

/// Softmax of scores [begin, valid) of `keys`, zeros for the rest; returns the logsumexp. `keys` is a
/// multiple of kVector; `probs` may be `scores`.
template <typename T>
HERO_INLINE float softmax_row(float* scores, int64_t begin, int64_t valid, int64_t keys, float scale,
                              T* probs) {
  const int64_t skipped = vector_of(begin);
  zero_from(probs, 0, skipped);
  scores += skipped, probs += skipped, begin -= skipped, valid -= skipped, keys -= skipped;
  const int64_t last = last_vector(valid), width = last + kVector;
  fill_from(scores + last, valid - last, kMasked);
  if (begin > 0) fill_before(scores, begin, kMasked);
  float highest = scores[0];
  for (int64_t i = 0; i < width; ++i) highest = scores[i] > highest ? scores[i] : highest;
  const float shift = highest * scale;
  float sum = 0;
  for (int64_t i = 0; i < width; ++i) {
    scores[i] = exp_fast(scores[i] * scale - shift);
    sum += scores[i];
  }
  fill_from(scores + last, valid - last, 0);
  if (begin > 0) fill_before(scores, begin, 0);
  const float inverse = 1.0f / sum;
  for (int64_t i = 0; i < width; ++i) store(probs[i], scores[i] * inverse);
  zero_from(probs, width, keys);
  return shift + std::log(sum);
}

}  // namespace hero::cpu
