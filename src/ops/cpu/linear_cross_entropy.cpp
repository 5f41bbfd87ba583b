// bf16 kernel on packed GEMMs: fp32 logits exist for 64 tokens per thread, their bf16 gradient for one chunk.
// Other vocabularies than multiples of 16 are zero-padded.
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <vector>

#include "ops/cpu/empty.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/simd.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

constexpr int64_t kChunk = 512;

// Returns -log softmax(z)[target] of the first v values of one row; writes its gradient softmax(z) -
// onehot(target) to dz [padded] if not null.
HERO_SIMD float row_loss(const float* z, int64_t v, int64_t padded, int64_t target, bf16* dz) {
  float highest = z[0];
  for (int64_t i = 1; i < v; ++i) highest = z[i] > highest ? z[i] : highest;
  float sum = 0;
  for (int64_t i = 0; i < v; ++i) sum += exp_fast(z[i] - highest);
  const float shift = highest + std::log(sum);
  if (dz) {
    for (int64_t i = 0; i < v; ++i) store(dz[i], exp_fast(z[i] - shift));
    store(dz[target], exp_fast(z[target] - shift) - 1.0f);
    std::fill(dz + v, dz + padded, bf16(0.0f));
  }
  return shift - z[target];
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_forward(const at::Tensor& x,
                                                                            const at::Tensor& w,
                                                                            const at::Tensor& targets,
                                                                            bool needs_dx, bool needs_dw) {
  const int64_t tokens = x.size(0), d = x.size(1), v = w.size(0), padded = round_up(v, 16);
  if (x.scalar_type() != at::kBFloat16 || !supports_gemm(d))
    return ops::linear_cross_entropy_reference(x, w, targets, needs_dx, needs_dw);
  const bool needs_dz = needs_dx || needs_dw;
  const auto weight = padded == v ? w.contiguous() : at::constant_pad_nd(w, {0, 0, 0, padded - v}),
             target_T = targets.contiguous();
  const auto* in = x.const_data_ptr<bf16>();
  const auto* target = target_T.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < tokens; ++t) {
    TORCH_CHECK(target[t] < v, "linear_cross_entropy: targets must be below V = ", v, ", got ", target[t]);
  }
  const auto forward_w = scratch<bf16>(d * padded), backward_w = scratch<bf16>(needs_dx ? d * padded : 0);
  pack(weight.const_data_ptr<bf16>(), d, padded, d, true, forward_w.get());
  if (needs_dx) pack(weight.const_data_ptr<bf16>(), padded, d, d, false, backward_w.get());
  at::Tensor dx = empty({needs_dx ? tokens : 0, d}, x.scalar_type());
  at::Tensor dw = at::zeros({needs_dw ? v : 0, d}, x.options().dtype(at::kFloat));
  const auto dz = scratch<bf16>(needs_dz ? std::min(kChunk, tokens) * padded : 0);
  std::vector<double> losses(tokens, 0.0);
  for (int64_t t = 0; t < tokens; t += kChunk) {
    const int64_t count = std::min(kChunk, tokens - t);
    parallel_tasks((count + kBlockRows - 1) / kBlockRows, [&](int64_t i) {
      const int64_t first = i * kBlockRows, rows = std::min(kBlockRows, count - first);
      const auto z = scratch<float>(rows * padded);
      gemm(rows, padded, d, in + (t + first) * d, d, forward_w.get(), z.get(), padded);
      bf16* grad = needs_dz ? dz.get() + first * padded : nullptr;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t label = target[t + first + r];
        if (label >= 0) {
          losses[t + first + r] =
              row_loss(z.get() + r * padded, v, padded, label, grad ? grad + r * padded : nullptr);
        } else if (grad) {
          std::fill_n(grad + r * padded, padded, bf16(0.0f));
        }
      }
      if (needs_dx)
        gemm_bf16(rows, d, padded, grad, padded, backward_w.get(), dx.data_ptr<bf16>() + (t + first) * d, d);
    });
    if (needs_dw) {
      weight_gradient(dz.get(), padded, in + t * d, d, count, v, d, dw.data_ptr<float>(), d,
                      /*accumulate=*/true);
    }
  }
  double loss = 0;
  for (const double l : losses) loss += l;
  return {at::scalar_tensor(loss, x.options().dtype(at::kFloat)), dx, dw};
}

}  // namespace hero::cpu
