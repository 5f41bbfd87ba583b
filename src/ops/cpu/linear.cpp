// bf16 linear on packed GEMM; fp32 forward passes, and bf16 ones of few rows, on skinny GEMM without packing;
// everything else uses the reference.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

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
  // Tasks are blocks of rows, of some of the panels if there are few rows.
  const int64_t block = 2 * kBlockRows, blocks = (rows + block - 1) / block, all = panels(n),
                groups =
                    std::clamp<int64_t>(2 * at::get_num_threads() / std::max<int64_t>(1, blocks), 1, all),
                share = (all + groups - 1) / groups, width = share * kPanelWidth;
  parallel_tasks(blocks * groups, [&](int64_t i) {
    const int64_t r = i / groups * block, first = i % groups * width;
    if (first >= n) return;
    gemm_bf16(std::min(block, rows - r), std::min(width, n - first), k, in + r * k, k, b + first * k,
              out + r * n + first, n);
  });
  return c;
}

// Tasks are blocks of rows and ranges of columns, all rows of a range one after the other.
template <typename T>
at::Tensor multiply_skinny(const at::Tensor& x, const at::Tensor& w) {
  const int64_t rows = x.size(0), n = w.size(0), k = w.size(1), block = 2 * kBlockRows,
                blocks = (rows + block - 1) / block;
  auto y = at::empty({rows, n}, x.options());
  const int64_t width = std::min(n, round_up(grain(std::min(rows, block) * k), 16)),
                ranges = (n + width - 1) / width;
  parallel_ranges(blocks * ranges, 1, [&](int64_t i, int64_t) {
    const int64_t first = i / blocks * width, r = i % blocks * block;
    skinny_gemm(std::min(block, rows - r), std::min(width, n - first), k, x.const_data_ptr<T>() + r * k, k,
                w.const_data_ptr<T>() + first * w.stride(0), w.stride(0), y.data_ptr<T>() + r * n + first, n);
  });
  return y;
}

}  // namespace

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w) {
  const int64_t rows = x.size(0), k = x.size(1), n = w.size(0);
  if (x.scalar_type() == at::kFloat && rows <= max_skinny_rows_fp32() && w.stride(1) == 1 &&
      x.is_contiguous() && supports_gemm(k, n)) {
    return multiply_skinny<float>(x, w);
  }
  if (!fused(x, k, n)) return ops::linear_forward_reference(x, w);
  if (rows <= kSkinnyRows && w.stride(1) == 1) return multiply_skinny<bf16>(x, w);
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
