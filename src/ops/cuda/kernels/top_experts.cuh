#pragma once
// Top-k routing, one warp per token. Lane l holds the scores of experts l, l + 32, ...; k rounds of a warp
// argmax find the experts in order. Ties go to the lower index; NaN counts as the lowest score, so ids are
// always distinct.
#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

inline constexpr int kSelectWarps = 4;  // per block, one token each
inline constexpr int kMaxGroups = kWarpSize;

struct TopExpertsParams {
  int64_t rows, experts, k;
  const float *scores, *bias;  // [rows, E], [E] or null
  int64_t groups, kept_groups;
  int64_t* ids;  // [rows, k]
};

struct Candidate {
  float value;
  int id;
};

__device__ __forceinline__ bool better(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

/// Best candidate of the warp, in every lane.
__device__ __forceinline__ Candidate warp_best(Candidate own) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const Candidate other{__shfl_xor_sync(kFullMask, own.value, offset),
                          __shfl_xor_sync(kFullMask, own.id, offset)};
    if (better(other, own)) own = other;
  }
  return own;
}

__device__ __forceinline__ float eligible(const TopExpertsParams& a, int64_t row, int64_t e) {
  const float v = a.scores[row * a.experts + e] + (a.bias ? a.bias[e] : 0.0f);
  return v == v ? v : -INFINITY;
}

/// Bit mask of the eligible groups: those with the largest sums of their two best scores.
__device__ __forceinline__ unsigned eligible_groups(const TopExpertsParams& a, int64_t row) {
  if (a.groups == 1) return 1;
  const int lane = threadIdx.x;
  const int64_t per_group = a.experts / a.groups;
  float first = -INFINITY, second = -INFINITY;
  for (int64_t e = lane * per_group; lane < a.groups && e < (lane + 1) * per_group; ++e) {
    const float v = eligible(a, row, e);
    second = fmaxf(second, fminf(first, v));
    first = fmaxf(first, v);
  }
  const float sum = per_group > 1 ? first + second : first;
  unsigned group_mask = 0;
  for (int64_t i = 0; i < a.kept_groups; ++i) {
    const bool taken = lane >= a.groups || group_mask >> lane & 1;
    const auto best = warp_best({taken ? -INFINITY : sum, taken ? lane + kWarpSize : lane});
    group_mask |= 1u << best.id;
  }
  return group_mask;
}

// Requires experts <= kWarpSize * parts.
template <int parts>
__global__ void select_experts(TopExpertsParams a) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kSelectWarps + threadIdx.y;
  if (r >= a.rows) return;
  const int lane = threadIdx.x;
  const unsigned group_mask = eligible_groups(a, r);
  const int64_t per_group = a.experts / a.groups;
  float values[parts];
  unsigned excluded = 0;  // bit i: expert lane + 32 i is not eligible or already selected
  HERO_UNROLL
  for (int i = 0; i < parts; ++i) {
    const int64_t e = lane + kWarpSize * i;
    const bool eligible_here = e < a.experts && (group_mask >> (e / per_group) & 1);
    values[i] = eligible_here ? eligible(a, r, e) : -INFINITY;
    excluded |= static_cast<unsigned>(!eligible_here) << i;
  }
  for (int64_t selected = 0; selected < a.k; ++selected) {
    Candidate own{-INFINITY, kWarpSize * parts};
    HERO_UNROLL
    for (int i = 0; i < parts; ++i) {
      const Candidate other{values[i], lane + kWarpSize * i};
      if (!(excluded >> i & 1) && better(other, own)) own = other;
    }
    const auto best = warp_best(own);
    if (best.id % kWarpSize == lane) excluded |= 1u << (best.id / kWarpSize);
    if (lane == 0) a.ids[r * a.k + selected] = best.id;
  }
}

struct ExpertWeightsParams {
  int64_t rows, experts, k;
  const float* scores;  // [rows, E]
  const int64_t* ids;   // [rows, k]
  bool normalize;
  float eps, factor;
};

// weights [rows, k]. Grid: one thread per token.
inline __global__ void expert_weights_forward(ExpertWeightsParams a, float* weights) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (r >= a.rows) return;
  const int64_t* id = a.ids + r * a.k;
  const float* s = a.scores + r * a.experts;
  float sum = 0;
  for (int64_t i = 0; i < a.k; ++i) sum += s[id[i]];
  const float whole = a.normalize ? sum + a.eps : 1.0f;  // division as on the CPU
  for (int64_t i = 0; i < a.k; ++i) weights[r * a.k + i] = s[id[i]] / whole * a.factor;
}

// Writes all of dscores [rows, E]. Grid: one warp per token.
inline __global__ void expert_weights_gradient(ExpertWeightsParams a, const float* dweights, float* dscores) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kSelectWarps + threadIdx.y;
  if (r >= a.rows) return;
  const int64_t* id = a.ids + r * a.k;
  const float *s = a.scores + r * a.experts, *dw = dweights + r * a.k;
  float whole = 1.0f, mean = 0;
  if (a.normalize) {
    float sum = 0, dot = 0;
    for (int64_t i = threadIdx.x; i < a.k; i += kWarpSize) {
      sum += s[id[i]];
      dot += dw[i] * s[id[i]];
    }
    whole = warp_sum(sum) + a.eps;
    mean = warp_sum(dot) / whole;
  }
  for (int64_t e = threadIdx.x; e < a.experts; e += kWarpSize) {
    float d = 0;
    for (int64_t i = 0; i < a.k; ++i) {
      if (id[i] == e) d = (dw[i] - mean) * a.factor / whole;
    }
    dscores[r * a.experts + e] = d;
  }
}

}  // namespace hero::ops::cuda
