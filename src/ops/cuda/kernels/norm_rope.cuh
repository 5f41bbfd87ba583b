#pragma once
// Fused RMSNorm and rotary embedding of heads. A warp keeps one head at a time in registers: lane l holds the
// pairs (c, c + half) for the n columns from n * (l + 32 i) on, i < parts. In the backward pass a block
// iterates over a strip of heads and accumulates the weight gradient in a fixed order; add_strips
// (rms_norm.cuh) sums the strips.
#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

inline constexpr int kHeadWarps = 8;  // per block

template <typename T>
struct NormRopeParams {
  int64_t rows, positions, heads, half;             // x is [B, S, H, 2 * half], rows = B * S * H
  int64_t ld_batch, ld_position, ld_head;           // strides of x
  int64_t ld_dy_batch, ld_dy_position, ld_dy_head;  // strides of dy
  const T *x, *w, *dy;
  const float *cos, *sin;  // [S, half]
  float eps;
  float* rstd;  // [rows], written forward, read backward
  T* out;       // y, or dx; contiguous
};

/// Offset and sequence position of row r of a tensor with the given strides.
struct HeadOffset {
  int64_t offset, position;
};
__device__ __forceinline__ HeadOffset head_offset(int64_t r, int64_t positions, int64_t heads,
                                                  int64_t ld_batch, int64_t ld_position, int64_t ld_head) {
  const int64_t token = r / heads, h = r - token * heads, b = token / positions, s = token - b * positions;
  return {b * ld_batch + s * ld_position + h * ld_head, s};
}

/// A lane's columns of one head: `low` from the first half, `high` their partners in the second half. Zeros
/// beyond the end.
template <int n, int parts>
struct Head {
  Vector<float, n> low[parts], high[parts];
};

template <int n, int parts, typename T>
__device__ __forceinline__ Head<n, parts> load_head(const T* x, int64_t half) {
  Head<n, parts> head{};
  HERO_UNROLL
  for (int i = 0; i < parts; ++i) {
    const int64_t c = (threadIdx.x + kWarpSize * i) * n;
    if (c >= half) continue;
    head.low[i] = load_fp32<n>(x + c);
    head.high[i] = load_fp32<n>(x + half + c);
  }
  return head;
}

template <int n, int parts, typename T>
__device__ __forceinline__ void store_head(T* y, int64_t half, const Head<n, parts>& head) {
  HERO_UNROLL
  for (int i = 0; i < parts; ++i) {
    const int64_t c = (threadIdx.x + kWarpSize * i) * n;
    if (c >= half) continue;
    store_rounded(y + c, head.low[i]);
    store_rounded(y + half + c, head.high[i]);
  }
}

/// Rotates every pair by its angle at position s; sign -1 inverts the rotation.
template <int n, int parts>
__device__ __forceinline__ void rotate_head(Head<n, parts>& head, const float* cos, const float* sin,
                                            int64_t s, int64_t half, float sign) {
  HERO_UNROLL
  for (int i = 0; i < parts; ++i) {
    const int64_t c = (threadIdx.x + kWarpSize * i) * n;
    if (c >= half) continue;
    const auto cosines = load<n>(cos + s * half + c), sines = load<n>(sin + s * half + c);
    HERO_UNROLL
    for (int j = 0; j < n; ++j) {
      const float p = head.low[i].value[j], q = head.high[i].value[j], sine = sign * sines.value[j];
      head.low[i].value[j] = p * cosines.value[j] - q * sine;
      head.high[i].value[j] = p * sine + q * cosines.value[j];
    }
  }
}

// Grid: rows / kHeadWarps.
template <int n, int parts, typename T>
__global__ void norm_rope_forward(NormRopeParams<T> a) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.y;
  if (r >= a.rows) return;
  const auto [offset, s] = head_offset(r, a.positions, a.heads, a.ld_batch, a.ld_position, a.ld_head);
  auto head = load_head<n, parts>(a.x + offset, a.half);
  const auto weight = load_head<n, parts>(a.w, a.half);
  float squares = 0;
  HERO_UNROLL
  for (int i = 0; i < parts; ++i) {
    HERO_UNROLL
    for (int j = 0; j < n; ++j) {
      const float p = head.low[i].value[j], q = head.high[i].value[j];
      squares += p * p + q * q;
    }
  }
  const float rstd = 1.0f / sqrtf(warp_sum(squares) / (2 * a.half) + a.eps);
  if (threadIdx.x == 0) a.rstd[r] = rstd;
  HERO_UNROLL
  for (int i = 0; i < parts; ++i) {
    HERO_UNROLL
    for (int j = 0; j < n; ++j) {
      head.low[i].value[j] *= rstd * weight.low[i].value[j];
      head.high[i].value[j] *= rstd * weight.high[i].value[j];
    }
  }
  rotate_head(head, a.cos, a.sin, s, a.half, 1.0f);
  store_head(a.out + r * 2 * a.half, a.half, head);
}

// With g = dy rotated back and normed = x * rstd: dx = (g w - normed * mean(g w normed)) * rstd, dw = sum of
// g * normed. partial [strips, 2 * half]: dw over the `strip` rows of one block. Grid: strips.
template <int n, int parts, typename T>
__global__ void norm_rope_backward(NormRopeParams<T> a, int64_t strip, float* partial) {
  const int64_t first = blockIdx.x * strip, width = 2 * a.half;
  const int64_t end = first + strip < a.rows ? first + strip : a.rows;
  const auto weight = load_head<n, parts>(a.w, a.half);
  Head<n, parts> sum{};
  for (int64_t r = first + threadIdx.y; r < end; r += kHeadWarps) {
    const auto [at, s] = head_offset(r, a.positions, a.heads, a.ld_batch, a.ld_position, a.ld_head);
    const auto from =
        head_offset(r, a.positions, a.heads, a.ld_dy_batch, a.ld_dy_position, a.ld_dy_head).offset;
    auto normed = load_head<n, parts>(a.x + at, a.half), g = load_head<n, parts>(a.dy + from, a.half);
    rotate_head(g, a.cos, a.sin, s, a.half, -1.0f);
    const float rstd = a.rstd[r];
    float dot = 0;
    HERO_UNROLL
    for (int i = 0; i < parts; ++i) {
      HERO_UNROLL
      for (int j = 0; j < n; ++j) {
        float &low = normed.low[i].value[j], &high = normed.high[i].value[j];
        low *= rstd;
        high *= rstd;
        sum.low[i].value[j] += g.low[i].value[j] * low;
        sum.high[i].value[j] += g.high[i].value[j] * high;
        g.low[i].value[j] *= weight.low[i].value[j];
        g.high[i].value[j] *= weight.high[i].value[j];
        dot += g.low[i].value[j] * low + g.high[i].value[j] * high;
      }
    }
    const float mean = warp_sum(dot) / width;
    HERO_UNROLL
    for (int i = 0; i < parts; ++i) {
      HERO_UNROLL
      for (int j = 0; j < n; ++j) {
        g.low[i].value[j] = (g.low[i].value[j] - normed.low[i].value[j] * mean) * rstd;
        g.high[i].value[j] = (g.high[i].value[j] - normed.high[i].value[j] * mean) * rstd;
      }
    }
    store_head(a.out + r * width, a.half, g);
  }
  __shared__ Head<n, parts> sums[kHeadWarps][kWarpSize];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0) return;
  for (int warp = 1; warp < kHeadWarps; ++warp) {
    const auto& other = sums[warp][threadIdx.x];
    HERO_UNROLL
    for (int i = 0; i < parts; ++i) {
      HERO_UNROLL
      for (int j = 0; j < n; ++j) {
        sum.low[i].value[j] += other.low[i].value[j];
        sum.high[i].value[j] += other.high[i].value[j];
      }
    }
  }
  store_head(partial + blockIdx.x * width, a.half, sum);
}

}  // namespace hero::ops::cuda
