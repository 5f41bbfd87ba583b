#pragma once
// Counts and counting sort of assignments; row gather and weighted sums. The sort is stable: each chunk of
// assignments counts its experts and ranks its assignments, one thread block scans the counts into first
// rows, then every assignment computes its row. Integer arithmetic only, so results are deterministic.
#include <cstdio>

#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

inline constexpr int kMaxExperts = 1024;
inline constexpr int kChunk = 256;     // assignments that one warp ranks
inline constexpr int kPlanWarps = 4;   // per block that ranks
inline constexpr int kScanWarps = 32;  // of the block that scans
inline constexpr int kRowWarps = 4;    // per block that copies rows, one row each

// counts [G, E], zero on entry: occurrences of every expert among the n ids of a group. Grid: one thread per
// id; lanes with equal expert and group share one atomic.
inline __global__ void count_ids(int64_t ids_in_all, int64_t n, int64_t experts, const int64_t* ids,
                                 unsigned long long* counts) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t id = i < ids_in_all ? ids[i] : -1;
  if (id < -1 || id >= experts) {
    printf("count_assignments: ids must lie in [-1, %lld), got %lld\n", static_cast<long long>(experts),
           static_cast<long long>(id));
    __trap();
  }
  const long long place = id < 0 ? -1 : i / n * experts + id;
  const unsigned peers = __match_any_sync(kFullMask, place);
  const bool first = (peers & ((1u << (threadIdx.x % kWarpSize)) - 1)) == 0;
  if (place >= 0 && first) atomicAdd(counts + place, static_cast<unsigned long long>(__popc(peers)));
}

struct PlanParams {
  int64_t assignments, k, experts, chunks;
  const int64_t* ids;  // [T, K]
  int* ranks;          // [T*K], rank within chunk and expert
  int64_t* before;     // [E, chunks]: rows of the expert in the chunk, then their first row
  int64_t *counts, *offsets, *token, *row;
};

// Grid: one warp per chunk.
inline __global__ void rank_in_chunks(PlanParams a) {
  __shared__ int counter[kPlanWarps][kMaxExperts];
  const int lane = threadIdx.x;
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) * kPlanWarps + threadIdx.y;
  if (chunk >= a.chunks) return;
  int* count = counter[threadIdx.y];
  for (int64_t e = lane; e < a.experts; e += kWarpSize) count[e] = 0;
  __syncwarp();
  for (int step = 0; step < kChunk; step += kWarpSize) {
    const int64_t i = chunk * kChunk + step + lane;
    const int64_t id = i < a.assignments ? a.ids[i] : -1;
    if (id < -1 || id >= a.experts) {
      printf("plan: ids must lie in [-1, %lld), got %lld\n", static_cast<long long>(a.experts),
             static_cast<long long>(id));
      __trap();
    }
    const unsigned peers = __match_any_sync(kFullMask, static_cast<int>(id));
    const int earlier = __popc(peers & ((1u << lane) - 1));
    const int first = id >= 0 ? count[id] : 0;
    __syncwarp();
    if (id >= 0 && earlier == 0) count[id] = first + __popc(peers);
    if (i < a.assignments) a.ranks[i] = first + earlier;
    __syncwarp();
  }
  for (int64_t e = lane; e < a.experts; e += kWarpSize) a.before[e * a.chunks + chunk] = count[e];
}

// One block: scans `before` into first rows and computes counts and offsets.
inline __global__ void scan_chunks(PlanParams a) {
  __shared__ int64_t total[kMaxExperts];
  const int lane = threadIdx.x;
  for (int64_t e = threadIdx.y; e < a.experts; e += kScanWarps) {
    int64_t running = 0;
    for (int64_t c = 0; c < a.chunks; c += kWarpSize) {
      int64_t* place = a.before + e * a.chunks + c + lane;
      const int64_t own = c + lane < a.chunks ? *place : 0, sum = warp_prefix(own, lane);
      if (c + lane < a.chunks) *place = running + sum - own;
      running += __shfl_sync(kFullMask, sum, kWarpSize - 1);
    }
    if (lane == 0) a.counts[e] = total[e] = running;
  }
  __syncthreads();
  if (threadIdx.y == 0) {
    int64_t running = 0;
    for (int64_t first = 0; first < a.experts; first += kWarpSize) {
      const int64_t e = first + lane, own = e < a.experts ? total[e] : 0, sum = warp_prefix(own, lane);
      if (e < a.experts) a.offsets[e] = total[e] = running + sum - own;
      running += __shfl_sync(kFullMask, sum, kWarpSize - 1);
    }
    if (lane == 0) a.offsets[a.experts] = running;
  }
  __syncthreads();
  for (int64_t e = threadIdx.y; e < a.experts; e += kScanWarps) {
    for (int64_t c = lane; c < a.chunks; c += kWarpSize) a.before[e * a.chunks + c] += total[e];
  }
}

// Grid: one thread per assignment, which also handles the row of the same index.
inline __global__ void place_assignments(PlanParams a) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= a.assignments) return;
  if (i >= a.offsets[a.experts]) a.token[i] = 0;
  const int64_t id = a.ids[i];
  const int64_t row = id < 0 ? -1 : a.before[id * a.chunks + i / kChunk] + a.ranks[i];
  a.row[i] = row;
  if (row >= 0) a.token[row] = i / a.k;
}

// Grid: one warp per row; Unit is the widest type that divides a row.
template <typename Unit>
__global__ void gather(int64_t rows, int64_t units, const Unit* x, const int64_t* token, Unit* out) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.y;
  if (r >= rows) return;
  const Unit* from = x + token[r] * units;
  for (int64_t i = threadIdx.x; i < units; i += kWarpSize) out[r * units + i] = from[i];
}

// y_t = base_t + sum_k w_tk x[row_tk]; null weights mean 1, null base means 0. Grid: one warp per token; n
// divides d.
template <int n, typename T>
__global__ void sum_rows(int64_t tokens, int64_t k, int64_t d, const T* x, const float* weights,
                         const int64_t* row, const T* base, T* y) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.y;
  if (t >= tokens) return;
  for (int64_t c = threadIdx.x * n; c < d; c += kWarpSize * n) {
    Vector<float, n> sum{};
    if (base) sum = load_fp32<n>(base + t * d + c);
    for (int64_t j = t * k; j < (t + 1) * k; ++j) {
      if (row[j] < 0) continue;
      const auto v = load_fp32<n>(x + row[j] * d + c);
      const float w = weights ? weights[j] : 1.0f;
      HERO_UNROLL
      for (int i = 0; i < n; ++i) sum.value[i] += w * v.value[i];
    }
    store_rounded(y + t * d + c, sum);
  }
}

template <typename T>
struct CombineGradient {
  int64_t rows, k, d;
  const T *dy, *y;             // [T, d], [rows, d]
  const float* weights;        // [T, K]
  const int64_t *row, *token;  // [T, K], [rows]
  T* dx;                       // [rows, d]
  float* dweights;             // [T, K], zeros on entry
};

// Grid: one warp per row. Padding rows get zeros.
template <int n, typename T>
__global__ void combine_gradient(CombineGradient<T> a) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.y;
  if (r >= a.rows) return;
  const int64_t t = a.token[r];
  int64_t assignment = -1;
  for (int64_t j = t * a.k; j < (t + 1) * a.k; ++j) {
    if (a.row[j] == r) assignment = j;
  }
  if (assignment < 0) {
    for (int64_t c = threadIdx.x * n; c < a.d; c += kWarpSize * n)
      store_rounded(a.dx + r * a.d + c, Vector<float, n>{});
    return;
  }
  const float w = a.weights[assignment];
  float dot = 0;
  for (int64_t c = threadIdx.x * n; c < a.d; c += kWarpSize * n) {
    auto dy = load_fp32<n>(a.dy + t * a.d + c);
    const auto y = load_fp32<n>(a.y + r * a.d + c);
    HERO_UNROLL
    for (int i = 0; i < n; ++i) {
      dot += dy.value[i] * y.value[i];
      dy.value[i] *= w;
    }
    store_rounded(a.dx + r * a.d + c, dy);
  }
  dot = warp_sum(dot);
  if (threadIdx.x == 0) a.dweights[assignment] = dot;
}

}  // namespace hero::ops::cuda
