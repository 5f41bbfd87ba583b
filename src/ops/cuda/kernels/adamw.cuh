#pragma once
// AdamW: one pass over values, gradients and moments, which also writes the leaves, the values rounded to
// bf16 or fp16: 16 bytes per element read, 14 written. The number of the step, the gradients' factor and the
// flag that skips the step are read from device memory.
#include "ops/cuda/kernels/chunks.cuh"

namespace hero::ops::cuda {

inline constexpr int kAdamWThreads = 256;
inline constexpr int kAdamWChunk = 8192;  // small: the last blocks of a launch leave few SMs idle
inline constexpr int kAdamWTensors = 64;  // per launch

template <typename T>
struct AdamWTensor {
  float* value;
  const float* gradient;
  float *first, *second;  // moments
  T* leaf;                // or null
};

template <typename T>
using AdamWTable = ChunkTable<AdamWTensor<T>, kAdamWTensors, kAdamWChunk>;

struct AdamWParams {
  double lr, beta1, beta2, weight_decay, eps;
  const float* step;    // from 1
  const double* scale;  // or null: 1
  const float* skip;    // or null; 1: nothing is updated
};

// Coefficients shared by all elements. The first moment's are sums of two fp32 numbers.
struct AdamWCoefficients {
  float decay, beta1, beta1_rest, gradient, gradient_rest, beta2, one_minus_beta2, scale, step_size,
      inv_sqrt_bias_correction, eps;
};

__device__ __forceinline__ AdamWCoefficients adamw_coefficients(const AdamWParams& a) {
  const double count = *a.step, scale = a.scale ? *a.scale : 1.0, gradient = (1 - a.beta1) * scale;
  const auto rounded = [](double v) { return static_cast<float>(v); };
  return {.decay = rounded(1 - a.lr * a.weight_decay),
          .beta1 = rounded(a.beta1),
          .beta1_rest = rounded(a.beta1 - rounded(a.beta1)),
          .gradient = rounded(gradient),
          .gradient_rest = rounded(gradient - rounded(gradient)),
          .beta2 = rounded(a.beta2),
          .one_minus_beta2 = rounded(1 - a.beta2),
          .scale = rounded(scale),
          .step_size = rounded(a.lr / (1 - pow(a.beta1, count))),
          .inv_sqrt_bias_correction = rounded(1 / sqrt(1 - pow(a.beta2, count))),
          .eps = rounded(a.eps)};
}

// Returns the new value. The terms of the first moment may cancel: `rest` is what their fp32 coefficients and
// products lose, so that the moment is accurate to about one fp32 ulp.
__device__ __forceinline__ float adamw_update(float value, float gradient, float& first, float& second,
                                              const AdamWCoefficients& r) {
  const float product = r.gradient * gradient;
  const float rest =
      fmaf(r.beta1_rest, first, fmaf(r.gradient_rest, gradient, fmaf(r.gradient, gradient, -product)));
  first = fmaf(r.beta1, first, product) + rest;
  const float g = gradient * r.scale;
  second = fmaf(r.beta2, second, r.one_minus_beta2 * g * g);
  return r.decay * value - r.step_size * first / (sqrtf(second) * r.inv_sqrt_bias_correction + r.eps);
}

// Updates elements [begin, end) of t, n per thread and iteration; n divides their number.
template <int n, typename T>
__device__ __forceinline__ void adamw_range(const AdamWTensor<T>& t, int64_t begin, int64_t end,
                                            const AdamWCoefficients& r) {
  for (int64_t i = begin + threadIdx.x * n; i < end; i += kAdamWThreads * n) {
    auto value = load<n>(t.value + i), first = load<n>(t.first + i), second = load<n>(t.second + i);
    const auto gradient = load<n>(t.gradient + i);
    HERO_UNROLL
    for (int j = 0; j < n; ++j)
      value.value[j] = adamw_update(value.value[j], gradient.value[j], first.value[j], second.value[j], r);
    store(t.value + i, value);
    store(t.first + i, first);
    store(t.second + i, second);
    if (t.leaf) store_rounded(t.leaf + i, value);
  }
}

// Grid: one block per chunk.
template <typename T>
__global__ void __launch_bounds__(kAdamWThreads) adamw(AdamWTable<T> table, AdamWParams a) {
  __shared__ AdamWCoefficients shared;
  if (a.skip && *a.skip == 1.0f) return;
  if (threadIdx.x == 0) shared = adamw_coefficients(a);
  __syncthreads();
  const AdamWCoefficients r = shared;
  const Chunk chunk = table.of_block(blockIdx.x);
  const AdamWTensor<T> t = table.tensor[chunk.tensor];
  constexpr int n = kVectorSize<float>;
  const bool vectors = is_aligned(t.value, 16) && is_aligned(t.gradient, 16) && is_aligned(t.first, 16) &&
                       is_aligned(t.second, 16) && is_aligned(t.leaf, n * sizeof(T));
  const int64_t end = chunk.begin + chunk.size, middle = vectors ? end - chunk.size % n : chunk.begin;
  adamw_range<n>(t, chunk.begin, middle, r);
  adamw_range<1>(t, middle, end, r);
}

}  // namespace hero::ops::cuda
