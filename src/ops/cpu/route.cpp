// Router in bf16, on packed GEMMs, and forward in fp32, on skinny ones: both results for a block of rows stay
// in cache, and an epilogue computes rho, their sum, softmax, the history slot with its sum of squares, and
// the statistics. GEMMs take multiples of 16: for other numbers of experts W and the history are copied with
// zeros after them.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "ops/cpu/empty.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/router_weight.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/simd.h"
#include "ops/reference.h"
#include "ops/route_stats.h"

namespace hero::cpu {
namespace {

using enum ops::RouteStat;
using ops::kRouteStats;

template <typename T>
struct Rows {
  const T* x;
  int64_t d;
  float* logits;          // holds Z_O on entry
  const float* residual;  // H W_R^T [rows, E], row stride ld_residual; null without history
  int64_t ld_residual;
  const float* sumsq;  // [rows, M], row stride ld_sumsq
  int64_t ld_sumsq, visible, experts;
  float depth_factor, eps;
  bool scale;
  float* probs;
  float* stats;  // [rows, kRouteStats]
  T* slot;       // null: not stored
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

HERO_INLINE float root_mean_square(float squares, int64_t n) {
  return std::sqrt(squares / static_cast<float>(n));
}

template <typename T>
HERO_INLINE float sum_of_squares(const T* x, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += load(x[i]) * load(x[i]);
  return sum;
}

// Adds rho times the history's logits to those of the hidden states; their statistics.
template <typename T>
HERO_INLINE void add_residual(const Rows<T>& a, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    float energy = 0;
    for (int64_t j = 0; j < a.visible; ++j) energy += a.sumsq[r * a.ld_sumsq + j];
    a.stats[r * kRouteStats + kRmsHistory] = root_mean_square(energy, a.visible * a.experts);
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* stats = a.stats + r * kRouteStats;
    const float rho = a.scale ? stats[kRmsHidden] / (stats[kRmsHistory] + a.eps) * a.depth_factor : 1.0f;
    const float* residual = a.residual + r * a.ld_residual;
    stats[kRho] = rho;
    stats[kHistoryVariance] = rho * rho * variance(residual, a.experts);
    float* z = a.logits + r * a.experts;
    for (int64_t i = 0; i < a.experts; ++i) z[i] += rho * residual[i];
  }
}

HERO_INLINE void softmax(const float* z, int64_t n, float* p) {
  float highest = z[0];
  for (int64_t i = 1; i < n; ++i) highest = z[i] > highest ? z[i] : highest;
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += p[i] = exp_fast(z[i] - highest);
  const float inverse = 1.0f / sum;
  for (int64_t i = 0; i < n; ++i) p[i] *= inverse;
}

// One loop over the rows for each quantity: the sums of different rows then overlap.
template <typename T>
HERO_INLINE void finish_rows_body(const Rows<T>& a, int64_t rows) {
  const int64_t e = a.experts;
  for (int64_t r = 0; r < rows; ++r) {
    float* stats = a.stats + r * kRouteStats;
    stats[kRmsHidden] = root_mean_square(sum_of_squares(a.x + r * a.d, a.d), a.d);
    stats[kRmsHistory] = stats[kRho] = stats[kHistoryVariance] = 0;
  }
  for (int64_t r = 0; r < rows; ++r)
    a.stats[r * kRouteStats + kHiddenVariance] = variance(a.logits + r * e, e);
  if (a.residual) add_residual(a, rows);
  for (int64_t r = 0; r < rows; ++r) softmax(a.logits + r * e, e, a.probs + r * e);
  if (!a.slot) return;
  for (int64_t r = 0; r < rows; ++r) {
    T* slot = a.slot + r * a.ld_slot;
    for (int64_t i = 0; i < e; ++i) store(slot[i], a.probs[r * e + i]);
    a.slot_sumsq[r * a.ld_slot_sumsq] = sum_of_squares(slot, e);
  }
}

HERO_SIMD void finish_rows(const Rows<bf16>& a, int64_t rows) { finish_rows_body(a, rows); }
HERO_SIMD void finish_rows(const Rows<float>& a, int64_t rows) { finish_rows_body(a, rows); }

bool supported(at::ScalarType type, const at::Tensor& x, const at::Tensor& w,
               const std::optional<at::Tensor>& history, const std::optional<at::Tensor>& slot) {
  return x.scalar_type() == type && supports_gemm(x.size(1)) && w.stride(1) == 1 &&
         (!history || (history->scalar_type() == type && history->stride(1) == 1)) &&
         (!slot || (slot->scalar_type() == type && slot->stride(1) == 1));
}

bool fused(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& history) {
  return supported(at::kBFloat16, x, w, history, std::nullopt);
}

// dz in bf16, unscaled and scaled by rho.
HERO_SIMD void logit_gradient(const float* dlogits, const float* dprobs, const float* probs,
                              const float* stats, int64_t rows, int64_t e, bf16* dz, bf16* scaled) {
  for (int64_t r = 0; r < rows; ++r) {
    const float *dl = dlogits + r * e, *dp = dprobs + r * e, *p = probs + r * e;
    const float rho = stats[r * kRouteStats + kRho];
    float dot = 0;
    for (int64_t i = 0; i < e; ++i) dot += dp[i] * p[i];
    for (int64_t i = 0; i < e; ++i) store(dz[r * e + i], dl[i] + p[i] * (dp[i] - dot));
    if (scaled) {
      for (int64_t i = 0; i < e; ++i) store(scaled[r * e + i], rho * (dl[i] + p[i] * (dp[i] - dot)));
    }
  }
}

template <typename T>
std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& w,
                                                       const std::optional<at::Tensor>& history,
                                                       const std::optional<at::Tensor>& sumsq,
                                                       double depth_factor, double eps, bool scale,
                                                       const std::optional<at::Tensor>& slot,
                                                       const std::optional<at::Tensor>& slot_sumsq) {
  const int64_t rows = x.size(0), d = x.size(1), e = w.size(0), seen = history ? history->size(1) : 0;
  auto logits = empty({rows, e}, at::kFloat), probs = empty({rows, e}, at::kFloat),
       stats = empty({rows, kRouteStats}, at::kFloat);
  const RouterWeight<T> weight(w, rows, d);
  const auto* in = x.const_data_ptr<T>();
  const auto* h = history ? history->const_data_ptr<T>() : nullptr;
  parallel_tasks((rows + kBlockRows - 1) / kBlockRows, [&](int64_t i) {
    const int64_t r = i * kBlockRows, count = std::min(kBlockRows, rows - r);
    const int64_t padded_e = weight.experts();
    const auto residual = scratch<float>(seen ? count * padded_e : 0);
    float* z = logits.data_ptr<float>() + r * e;
    if (padded_e == e) {
      weight.multiply(count, d, in + r * d, d, 0, z);
    } else {
      const auto wide_z = scratch<float>(count * padded_e);
      weight.multiply(count, d, in + r * d, d, 0, wide_z.get());
      for (int64_t i = 0; i < count; ++i) std::copy_n(wide_z.get() + i * padded_e, e, z + i * e);
    }
    if (seen) {
      const PaddedColumns<T> visible(h + r * history->stride(0), history->stride(0), count, seen,
                                     kGemmMultiple);
      weight.multiply(count, visible.columns(), visible.data(), visible.ld(), d, residual.get());
    }
    const Rows<T> block{
        .x = in + r * d,
        .d = d,
        .logits = z,
        .residual = seen ? residual.get() : nullptr,
        .ld_residual = padded_e,
        .sumsq = seen ? sumsq->const_data_ptr<float>() + r * sumsq->stride(0) : nullptr,
        .ld_sumsq = seen ? sumsq->stride(0) : 0,
        .visible = seen / e,
        .experts = e,
        .depth_factor = static_cast<float>(depth_factor),
        .eps = static_cast<float>(eps),
        .scale = scale,
        .probs = probs.data_ptr<float>() + r * e,
        .stats = stats.data_ptr<float>() + r * kRouteStats,
        .slot = slot ? slot->data_ptr<T>() + r * slot->stride(0) : nullptr,
        .ld_slot = slot ? slot->stride(0) : 0,
        .slot_sumsq = slot ? slot_sumsq->data_ptr<float>() + r * slot_sumsq->stride(0) : nullptr,
        .ld_slot_sumsq = slot ? slot_sumsq->stride(0) : 0};
    finish_rows(block, count);
  });
  return {logits, probs, stats};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> route_forward(const at::Tensor& x, const at::Tensor& w,
                                                             const std::optional<at::Tensor>& history,
                                                             const std::optional<at::Tensor>& sumsq,
                                                             double depth_factor, double eps, bool scale,
                                                             const std::optional<at::Tensor>& slot,
                                                             const std::optional<at::Tensor>& slot_sumsq) {
  const auto run = [&](const auto& function) {
    return function(x, w, history, sumsq, depth_factor, eps, scale, slot, slot_sumsq);
  };
  if (supported(at::kBFloat16, x, w, history, slot)) return run(forward<bf16>);
  if (supported(at::kFloat, x, w, history, slot)) return run(forward<float>);
  return run(ops::route_forward_reference);
}

std::tuple<at::Tensor, at::Tensor> route_backward_input(const at::Tensor& dlogits, const at::Tensor& dprobs,
                                                        const at::Tensor& probs, const at::Tensor& x,
                                                        const at::Tensor& w,
                                                        const std::optional<at::Tensor>& history,
                                                        const at::Tensor& stats) {
  if (!fused(x, w, history))
    return ops::route_backward_input_reference(dlogits, dprobs, probs, x, w, history, stats);
  const int64_t rows = x.size(0), d = x.size(1), e = w.size(0), padded = round_up(e, kGemmMultiple);
  auto dx = at::empty_like(x), dz = empty({history ? 2 : 1, rows, e}, x.scalar_type());
  auto* plain = dz.data_ptr<bf16>();
  auto* scaled = history ? plain + rows * e : nullptr;
  const auto packed = scratch<bf16>(padded * d);
  parallel_tasks(panels(d), [&](int64_t p) {
    pack_panel(w.const_data_ptr<bf16>(), padded, e, d, w.stride(0), false, p, packed.get());
  });
  parallel_tasks((rows + kBlockRows - 1) / kBlockRows, [&](int64_t i) {
    const int64_t r = i * kBlockRows, count = std::min(kBlockRows, rows - r);
    logit_gradient(dlogits.const_data_ptr<float>() + r * e, dprobs.const_data_ptr<float>() + r * e,
                   probs.const_data_ptr<float>() + r * e, stats.const_data_ptr<float>() + r * kRouteStats,
                   count, e, plain + r * e, scaled ? scaled + r * e : nullptr);
    const PaddedColumns<bf16> gradient(plain + r * e, e, count, e, kGemmMultiple);
    gemm_bf16(count, d, padded, gradient.data(), gradient.ld(), packed.get(), dx.data_ptr<bf16>() + r * d, d);
  });
  return {dx, dz};
}

at::Tensor route_backward_weight(const at::Tensor& dz, const at::Tensor& x,
                                 const std::optional<at::Tensor>& history) {
  // bf16 dz comes from the fused route_backward_input above.
  if (dz.scalar_type() != at::kBFloat16) return ops::route_backward_weight_reference(dz, x, history);
  const int64_t rows = x.size(0), d = x.size(1), e = dz.size(2), seen = history ? history->size(1) : 0;
  auto dw = empty({e, d + seen}, at::kFloat);
  const auto* plain = dz.const_data_ptr<bf16>();
  weight_gradient(plain, e, x.const_data_ptr<bf16>(), d, rows, e, d, dw.data_ptr<float>(), d + seen);
  if (!history) return dw;
  const PaddedColumns<bf16> h(history->const_data_ptr<bf16>(), history->stride(0), rows, seen, kGemmMultiple);
  const int64_t padded = h.columns();
  const auto* scaled = plain + rows * e;
  if (padded == seen) {
    weight_gradient(scaled, e, h.data(), h.ld(), rows, e, seen, dw.data_ptr<float>() + d, d + seen);
    return dw;
  }
  const auto wide = scratch<float>(e * padded);
  weight_gradient(scaled, e, h.data(), h.ld(), rows, e, padded, wide.get(), padded);
  for (int64_t i = 0; i < e; ++i)
    std::copy_n(wide.get() + i * padded, seen, dw.data_ptr<float>() + i * (d + seen) + d);
  return dw;
}

}  // namespace hero::cpu
