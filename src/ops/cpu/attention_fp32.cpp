// fp32 causal attention of prompts, without gradients, on skinny GEMMs: as the bf16 forward
// pass, 64 queries at a time against all visible keys. Keys are copied and values transposed once per KV
// head, zero-padded to a multiple of 16 positions.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "ops/cpu/attention.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/skinny_gemm.h"

namespace hero::cpu {

bool supports_attention_fp32(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return q.scalar_type() == at::kFloat && q.size(0) > 0 && q.size(2) > 0 && q.size(2) == k.size(2) &&
         supports_gemm(q.size(3), v.size(3)) && q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1;
}

namespace {

// Softmax of the first `valid` scores, zeros for the rest; returns the logsumexp.
HERO_SIMD float softmax_in_place(float* scores, int64_t valid, int64_t width, float scale) {
  float highest = scores[0];
  for (int64_t i = 0; i < valid; ++i) highest = scores[i] > highest ? scores[i] : highest;
  const float shift = highest * scale;
  float sum = 0;
  for (int64_t i = 0; i < valid; ++i) {
    scores[i] = exp_fast(scores[i] * scale - shift);
    sum += scores[i];
  }
  const float inverse = 1.0f / sum;
  for (int64_t i = 0; i < valid; ++i) scores[i] *= inverse;
  for (int64_t i = valid; i < width; ++i) scores[i] = 0;
  return shift + std::log(sum);
}

// out [width, padded] = in [rows, width]^T, the rest zero.
void transpose_padded(const float* in, int64_t rows, int64_t padded, int64_t width, int64_t ld, float* out) {
  for (int64_t c = 0; c < width; ++c) {
    for (int64_t r = 0; r < rows; ++r) out[c * padded + r] = in[r * ld + c];
    std::fill(out + c * padded + rows, out + (c + 1) * padded, 0.0f);
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> attention_forward_fp32(const at::Tensor& q, const at::Tensor& k,
                                                          const at::Tensor& v, double scale) {
  const int64_t batch = q.size(0), heads = q.size(1), kv_heads = k.size(1), length = q.size(2),
                qk = q.size(3), width = v.size(3), padded = round_up(length, 16), kv = batch * kv_heads,
                groups = heads / kv_heads, blocks = (length + kBlockRows - 1) / kBlockRows;
  auto out = at::empty({batch, length, heads, width}, q.options());
  auto lse = at::empty({batch, heads, length}, q.options());
  const auto keys = scratch<float>(kv * padded * qk), values = scratch<float>(kv * padded * width);
  const auto head_of = [](const at::Tensor& x, int64_t b, int64_t h) {
    return x.const_data_ptr<float>() + b * x.stride(0) + h * x.stride(1);
  };
  parallel_tasks(kv, [&](int64_t i) {
    const int64_t b = i / kv_heads, g = i % kv_heads;
    copy_padded(head_of(k, b, g), k.stride(2), length, qk, keys.get() + i * padded * qk, padded, qk);
    transpose_padded(head_of(v, b, g), length, padded, width, v.stride(2), values.get() + i * padded * width);
  });
  parallel_tasks(batch * heads * blocks, [&](int64_t i) {
    // Longest rows first, for load balance.
    const int64_t block = blocks - 1 - i / (batch * heads), head = i % (batch * heads), b = head / heads,
                  h = head % heads, g = b * kv_heads + h / groups, first = block * kBlockRows,
                  rows = std::min(kBlockRows, length - first), visible = round_up(first + rows, 16);
    const auto scores = scratch<float>(rows * visible);
    skinny_gemm(rows, visible, qk, head_of(q, b, h) + first * q.stride(2), q.stride(2),
                keys.get() + g * padded * qk, qk, scores.get(), visible);
    for (int64_t r = 0; r < rows; ++r) {
      lse.data_ptr<float>()[head * length + first + r] =
          softmax_in_place(scores.get() + r * visible, first + r + 1, visible, static_cast<float>(scale));
    }
    skinny_gemm(rows, width, visible, scores.get(), visible, values.get() + g * padded * width, padded,
                out.data_ptr<float>() + ((b * length + first) * heads + h) * width, heads * width);
  });
  return {out, lse};
}

}  // namespace hero::cpu
