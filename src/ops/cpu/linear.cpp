// bf16 linear on packed GEMM; bf16 and fp32 linear of few rows on skinny GEMM without packing; everything
// else uses the reference.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/skinny_gemm.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

bool fused(const at::Tensor& a, int64_t k, int64_t n) {
  return a.scalar_type() == at::kBFloat16 && supports_gemm(k, n);
}

// c [T, n] = a [T, k] * b, with b packed once for all threads.
at::Tensor multiply(const at::Tensor& a, const at::Tensor& w, int64_t n, bool transposed) {
  const int64_t rows = a.size(0), k = a.size(1);
  auto c = at::empty({rows, n}, a.options());
  auto packed = at::empty({k * n}, a.options());
  const auto weight = w.contiguous();
  auto* b = packed.data_ptr<bf16>();
  pack(weight.data_ptr<bf16>(), k, n, weight.size(1), transposed, b);
  const auto* in = a.data_ptr<bf16>();
  auto* out = c.data_ptr<bf16>();
  const int64_t block = 2 * kBlockRows;
  parallel_tasks((rows + block - 1) / block, [&](int64_t i) {
    const int64_t r = i * block;
    gemm_bf16(std::min(block, rows - r), n, k, in + r * k, k, b, out + r * n, n);
  });
  return c;
}

// Splits the columns of the result over threads.
template <typename T>
at::Tensor multiply_skinny(const at::Tensor& x, const at::Tensor& w) {
  const int64_t rows = x.size(0), n = w.size(0), k = w.size(1);
  auto y = at::empty({rows, n}, x.options());
  parallel_ranges(n, round_up(grain(rows * k), 16), [&](int64_t first, int64_t end) {
    skinny_gemm(rows, end - first, k, x.const_data_ptr<T>(), k, w.const_data_ptr<T>() + first * w.stride(0),
                w.stride(0), y.data_ptr<T>() + first, n);
  });
  return y;
}

}  // namespace

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w) {
  const bool skinny = x.size(0) <= kSkinnyRows && w.stride(1) == 1;
  if (skinny && x.scalar_type() == at::kFloat && x.is_contiguous() && supports_gemm(x.size(1), w.size(0)))
    return multiply_skinny<float>(x, w);
  if (!fused(x, x.size(1), w.size(0))) return ops::linear_forward_reference(x, w);
  if (skinny) return multiply_skinny<bf16>(x, w);
  return multiply(x, w, w.size(0), true);
}

at::Tensor linear_backward_input(const at::Tensor& dy, const at::Tensor& w) {
  return fused(dy, dy.size(1), w.size(1)) ? multiply(dy, w, w.size(1), false)
                                          : ops::linear_backward_input_reference(dy, w);
}

at::Tensor linear_backward_weight(const at::Tensor& dy, const at::Tensor& x) {
  const int64_t n = dy.size(1), k = x.size(1);
  if (!fused(dy, n, k)) return ops::linear_backward_weight_reference(dy, x);
  auto dw = at::empty({n, k}, dy.options().dtype(at::kFloat));
  weight_gradient(dy.data_ptr<bf16>(), n, x.data_ptr<bf16>(), k, dy.size(0), n, k, dw.data_ptr<float>(), k);
  return dw;
}

}  // namespace hero::cpu
