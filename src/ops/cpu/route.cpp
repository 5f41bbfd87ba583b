// bf16 router on packed GEMMs: both results for a block of rows stay in cache, and an epilogue computes rho,
// their sum, softmax, the history slot with its sum of squares, and the statistics.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/cpu/gemm.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/skinny_gemm.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

using cpu::bf16;

struct Rows {
  const bf16* x;
  int64_t d;
  float* logits;          // holds Z_O on entry
  const float* residual;  // H W_R^T, null without history
  const float* sumsq;     // [rows, M], row stride ld_sumsq
  int64_t ld_sumsq, visible, experts;
  float depth_factor, eps;
  bool scale;
  float* probs;
  float* stats;
  bf16* slot;  // null: not stored
  int64_t ld_slot;
  float* slot_sumsq;
  int64_t ld_slot_sumsq;
};

HERO_INLINE float variance(const float* z, int64_t n) {
  float sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += z[i];
  const float mean = sum / static_cast<float>(n);
  for (int64_t i = 0; i < n; ++i) squares += (z[i] - mean) * (z[i] - mean);
  return squares / static_cast<float>(n);
}

HERO_SIMD void finish_rows(const Rows& a, int64_t rows) {
  const int64_t e = a.experts;
  for (int64_t r = 0; r < rows; ++r) {
    const bf16* x = a.x + r * a.d;
    float squares = 0;
    for (int64_t i = 0; i < a.d; ++i) squares += cpu::load(x[i]) * cpu::load(x[i]);
    float* stats = a.stats + r * 5;
    float* z = a.logits + r * e;
    stats[0] = std::sqrt(squares / static_cast<float>(a.d));
    stats[1] = stats[2] = stats[4] = 0;
    stats[3] = variance(z, e);
    if (a.residual) {
      float energy = 0;
      for (int64_t j = 0; j < a.visible; ++j) energy += a.sumsq[r * a.ld_sumsq + j];
      stats[1] = std::sqrt(energy / static_cast<float>(a.visible * e));
      const float rho = a.scale ? stats[0] / (stats[1] + a.eps) * a.depth_factor : 1.0f;
      stats[2] = rho;
      const float* residual = a.residual + r * e;
      stats[4] = rho * rho * variance(residual, e);
      for (int64_t i = 0; i < e; ++i) z[i] += rho * residual[i];
    }
    float highest = z[0];
    for (int64_t i = 1; i < e; ++i) highest = z[i] > highest ? z[i] : highest;
    float* p = a.probs + r * e;
    float sum = 0;
    for (int64_t i = 0; i < e; ++i) sum += p[i] = cpu::exp_fast(z[i] - highest);
    const float inverse = 1.0f / sum;
    for (int64_t i = 0; i < e; ++i) p[i] *= inverse;
    if (a.slot) {
      bf16* slot = a.slot + r * a.ld_slot;
      float stored = 0;
      for (int64_t i = 0; i < e; ++i) cpu::store(slot[i], p[i]);
      for (int64_t i = 0; i < e; ++i) stored += cpu::load(slot[i]) * cpu::load(slot[i]);
      a.slot_sumsq[r * a.ld_slot_sumsq] = stored;
    }
  }
}

bool fused(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& history,
           const std::optional<at::Tensor>& slot) {
  return x.scalar_type() == at::kBFloat16 && cpu::supports_gemm(x.size(1), w.size(0)) && w.stride(1) == 1 &&
         (!history || (history->scalar_type() == at::kBFloat16 && history->stride(1) == 1)) &&
         (!slot || (slot->scalar_type() == at::kBFloat16 && slot->stride(1) == 1));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& w,
                                                       const std::optional<at::Tensor>& history,
                                                       const std::optional<at::Tensor>& sumsq,
                                                       double depth_factor, double eps, bool scale,
                                                       const std::optional<at::Tensor>& slot,
                                                       const std::optional<at::Tensor>& slot_sumsq) {
  if (!fused(x, w, history, slot)) {
    return route_forward_reference(x, w, history, sumsq, depth_factor, eps, scale, slot, slot_sumsq);
  }
  const int64_t rows = x.size(0), d = x.size(1), e = w.size(0), seen = history ? history->size(1) : 0;
  const auto wide = x.options().dtype(at::kFloat);
  auto logits = at::empty({rows, e}, wide), probs = at::empty({rows, e}, wide),
       stats = at::empty({rows, 5}, wide);
  const bool skinny = rows <= cpu::kSkinnyRows;
  const auto packed = cpu::scratch<bf16>(skinny ? 0 : e * (d + seen));
  const auto* weight = w.const_data_ptr<bf16>();
  if (!skinny) {
    cpu::pack(weight, d, e, w.stride(0), true, packed.get());
    if (seen) cpu::pack(weight + d, seen, e, w.stride(0), true, packed.get() + e * d);
  }
  const auto* in = x.const_data_ptr<bf16>();
  const auto* h = seen ? history->const_data_ptr<bf16>() : nullptr;
  cpu::parallel_tasks((rows + cpu::kBlockRows - 1) / cpu::kBlockRows, [&](int64_t i) {
    const int64_t r = i * cpu::kBlockRows, count = std::min(cpu::kBlockRows, rows - r);
    const auto residual = cpu::scratch<float>(seen ? count * e : 0);
    float* z = logits.data_ptr<float>() + r * e;
    const auto multiply = [&](const bf16* a, int64_t k, int64_t lda, int64_t first, float* c) {
      if (skinny) return cpu::skinny_gemm(count, e, k, a, lda, weight + first, w.stride(0), c, e);
      cpu::gemm(count, e, k, a, lda, packed.get() + e * first, c, e);
    };
    multiply(in + r * d, d, d, 0, z);
    if (seen) multiply(h + r * history->stride(0), seen, history->stride(0), d, residual.get());
    const Rows block{.x = in + r * d,
                     .d = d,
                     .logits = z,
                     .residual = seen ? residual.get() : nullptr,
                     .sumsq = seen ? sumsq->const_data_ptr<float>() + r * sumsq->stride(0) : nullptr,
                     .ld_sumsq = seen ? sumsq->stride(0) : 0,
                     .visible = seen / e,
                     .experts = e,
                     .depth_factor = static_cast<float>(depth_factor),
                     .eps = static_cast<float>(eps),
                     .scale = scale,
                     .probs = probs.data_ptr<float>() + r * e,
                     .stats = stats.data_ptr<float>() + r * 5,
                     .slot = slot ? slot->data_ptr<bf16>() + r * slot->stride(0) : nullptr,
                     .ld_slot = slot ? slot->stride(0) : 0,
                     .slot_sumsq = slot ? slot_sumsq->data_ptr<float>() + r * slot_sumsq->stride(0) : nullptr,
                     .ld_slot_sumsq = slot ? slot_sumsq->stride(0) : 0};
    finish_rows(block, count);
  });
  return {logits, probs, stats};
}

// dz in bf16, unscaled and scaled by rho.
HERO_SIMD void logit_gradient(const float* dlogits, const float* dprobs, const float* probs,
                              const float* stats, int64_t rows, int64_t e, bf16* dz, bf16* scaled) {
  for (int64_t r = 0; r < rows; ++r) {
    const float *dl = dlogits + r * e, *dp = dprobs + r * e, *p = probs + r * e;
    const float rho = stats[r * 5 + 2];
    float dot = 0;
    for (int64_t i = 0; i < e; ++i) dot += dp[i] * p[i];
    for (int64_t i = 0; i < e; ++i) cpu::store(dz[r * e + i], dl[i] + p[i] * (dp[i] - dot));
    if (scaled) {
      for (int64_t i = 0; i < e; ++i) cpu::store(scaled[r * e + i], rho * (dl[i] + p[i] * (dp[i] - dot)));
    }
  }
}

std::tuple<at::Tensor, at::Tensor> backward_input(const at::Tensor& dlogits, const at::Tensor& dprobs,
                                                  const at::Tensor& probs, const at::Tensor& x,
                                                  const at::Tensor& w,
                                                  const std::optional<at::Tensor>& history,
                                                  const at::Tensor& stats) {
  if (!fused(x, w, history, std::nullopt))
    return route_backward_input_reference(dlogits, dprobs, probs, x, w, history, stats);
  const int64_t rows = x.size(0), d = x.size(1), e = w.size(0);
  auto dx = at::empty_like(x), dz = at::empty({history ? 2 : 1, rows, e}, x.options());
  auto* plain = dz.data_ptr<bf16>();
  auto* scaled = history ? plain + rows * e : nullptr;
  const auto packed = cpu::scratch<bf16>(e * d);
  cpu::pack(w.const_data_ptr<bf16>(), e, d, w.stride(0), false, packed.get());
  cpu::parallel_tasks((rows + cpu::kBlockRows - 1) / cpu::kBlockRows, [&](int64_t i) {
    const int64_t r = i * cpu::kBlockRows, count = std::min(cpu::kBlockRows, rows - r);
    logit_gradient(dlogits.const_data_ptr<float>() + r * e, dprobs.const_data_ptr<float>() + r * e,
                   probs.const_data_ptr<float>() + r * e, stats.const_data_ptr<float>() + r * 5, count, e,
                   plain + r * e, scaled ? scaled + r * e : nullptr);
    cpu::gemm_bf16(count, d, e, plain + r * e, e, packed.get(), dx.data_ptr<bf16>() + r * d, d);
  });
  return {dx, dz};
}

at::Tensor backward_weight(const at::Tensor& dz, const at::Tensor& x,
                           const std::optional<at::Tensor>& history) {
  // bf16 dz comes from the fused backward_input above.
  if (dz.scalar_type() != at::kBFloat16) return route_backward_weight_reference(dz, x, history);
  const int64_t rows = x.size(0), d = x.size(1), e = dz.size(2), seen = history ? history->size(1) : 0;
  auto dw = at::empty({e, d + seen}, x.options().dtype(at::kFloat));
  const auto* plain = dz.const_data_ptr<bf16>();
  cpu::weight_gradient(plain, e, x.const_data_ptr<bf16>(), d, rows, e, d, dw.data_ptr<float>(), d + seen);
  if (history) {
    cpu::weight_gradient(plain + rows * e, e, history->const_data_ptr<bf16>(), history->stride(0), rows, e,
                         seen, dw.data_ptr<float>() + d, d + seen);
  }
  return dw;
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CPU, m) {
  m.impl("route_forward", forward);
  m.impl("route_backward_input", backward_input);
  m.impl("route_backward_weight", backward_weight);
}

}  // namespace hero::ops
