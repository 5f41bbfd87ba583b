#pragma once
// The sparse choice, a warp per token. Lane l holds the scores of experts l, l + 32, ...; the k best are
// found one after another, each lane's best against the others'. Ties go to the lower expert; what is no
// number counts as the lowest, so that the ids are different ones whatever the scores.
#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

inline constexpr int kChooseWarps = 4;  // of a block, one token each
inline constexpr int kMostGroups = kLanes;

struct ChooseWork {
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

/// For every lane the best of the warp's candidates.
__device__ __forceinline__ Candidate warp_best(Candidate own) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const Candidate other{__shfl_xor_sync(kAll, own.value, offset), __shfl_xor_sync(kAll, own.id, offset)};
    if (better(other, own)) own = other;
  }
  return own;
}

__device__ __forceinline__ float eligible(const ChooseWork& a, int64_t row, int64_t e) {
  const float v = a.scores[row * a.experts + e] + (a.bias ? a.bias[e] : 0.0f);
  return v == v ? v : -INFINITY;
}

/// Bit g: whether group g is among those with the largest sums of their two best.
__device__ __forceinline__ unsigned open_groups(const ChooseWork& a, int64_t row) {
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
  unsigned open = 0;
  for (int64_t i = 0; i < a.kept_groups; ++i) {
    const bool taken = lane >= a.groups || open >> lane & 1;
    const auto best = warp_best({taken ? -INFINITY : sum, taken ? lane + kLanes : lane});
    open |= 1u << best.id;
  }
  return open;
}

// experts at most kLanes * parts.
template <int parts>
__global__ void choose_experts(ChooseWork a) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kChooseWarps + threadIdx.y;
  if (r >= a.rows) return;
  const int lane = threadIdx.x;
  const unsigned open = open_groups(a, r);
  const int64_t per_group = a.experts / a.groups;
  float values[parts];
  unsigned closed = 0;  // bit i: expert lane + 32 i is not eligible, or chosen already
  HERO_UNROLL
  for (int i = 0; i < parts; ++i) {
    const int64_t e = lane + kLanes * i;
    const bool eligible_here = e < a.experts && (open >> (e / per_group) & 1);
    values[i] = eligible_here ? eligible(a, r, e) : -INFINITY;
    closed |= static_cast<unsigned>(!eligible_here) << i;
  }
  for (int64_t chosen = 0; chosen < a.k; ++chosen) {
    Candidate own{-INFINITY, kLanes * parts};
    HERO_UNROLL
    for (int i = 0; i < parts; ++i) {
      const Candidate other{values[i], lane + kLanes * i};
      if (!(closed >> i & 1) && better(other, own)) own = other;
    }
    const auto best = warp_best(own);
    if (best.id % kLanes == lane) closed |= 1u << (best.id / kLanes);
    if (lane == 0) a.ids[r * a.k + chosen] = best.id;
  }
}

struct WeightsWork {
  int64_t rows, experts, k;
  const float* scores;  // [rows, E]
  const int64_t* ids;   // [rows, k]
  bool normalise;
  float eps, factor;
};

// weights [rows, k]. Grid: a thread per token.
inline __global__ void expert_weights_forward(WeightsWork a, float* weights) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (r >= a.rows) return;
  const int64_t* id = a.ids + r * a.k;
  const float* s = a.scores + r * a.experts;
  float sum = 0;
  for (int64_t i = 0; i < a.k; ++i) sum += s[id[i]];
  const float whole = a.normalise ? sum + a.eps : 1.0f;  // divided as on the CPU
  for (int64_t i = 0; i < a.k; ++i) weights[r * a.k + i] = s[id[i]] / whole * a.factor;
}

// dscores [rows, E], every element. Grid: a warp per token.
inline __global__ void expert_weights_gradient(WeightsWork a, const float* dweights, float* dscores) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kChooseWarps + threadIdx.y;
  if (r >= a.rows) return;
  const int64_t* id = a.ids + r * a.k;
  const float *s = a.scores + r * a.experts, *dw = dweights + r * a.k;
  float whole = 1.0f, mean = 0;
  if (a.normalise) {
    float sum = 0, dot = 0;
    for (int64_t i = threadIdx.x; i < a.k; i += kLanes) {
      sum += s[id[i]];
      dot += dw[i] * s[id[i]];
    }
    whole = warp_sum(sum) + a.eps;
    mean = warp_sum(dot) / whole;
  }
  for (int64_t e = threadIdx.x; e < a.experts; e += kLanes) {
    float d = 0;
    for (int64_t i = 0; i < a.k; ++i) {
      if (id[i] == e) d = (dw[i] - mean) * a.factor / whole;
    }
    dscores[r * a.experts + e] = d;
  }
}

}  // namespace hero::ops::cuda
